"""Track the bytes of tensors that are alive while a model runs on the meta device."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from worker.model.kv import StageCache
from worker.model.run import StageRunner


class ActivationWatch:
    """Finds the most live bytes beside the cache, layer by layer.

    The cache grows from layer to layer, so the peak of both together is at the last layers and
    says little about the temporaries of the first. By layers, what a slice takes is never more
    than what a wider slice takes.
    """

    def __init__(self, cache: StageCache) -> None:
        self._cache = cache
        self._live = LiveBytes()
        self._most_bytes = 0

    @contextmanager
    def over(self, runner: StageRunner) -> Iterator[None]:
        """Watch a forward of `runner`."""
        model, parts = runner.loaded.model, runner.loaded.sliced.parts
        layers = list(model.get_submodule(parts.layers).children())
        own = layers[runner.stage.shard_start : runner.stage.shard_end]
        handles = [layer.register_forward_hook(self._after_layer) for layer in own]
        try:
            with self._live:
                yield
        finally:
            for handle in handles:
                handle.remove()
        self._after_layer()

    def most_bytes(self) -> int:
        """Return the peak, without the copies that the cache made to go one op back."""
        copies = self._live.bytes_of(self._cache.previous_tensors())
        return max(0, self._most_bytes - copies)

    def _after_layer(self, *_hook: Any) -> None:
        held_bytes = self._live.bytes_of(self._cache.tensors())
        self._most_bytes = max(self._most_bytes, self._live.peak_bytes - held_bytes)
        self._live.peak_bytes = self._live.live_bytes


class LiveBytes(TorchDispatchMode):
    """Tracks the bytes of storages made while active, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: set[int] = set()

    def bytes_of(self, tensors: Iterable[torch.Tensor]) -> int:
        """Return the bytes of those storages of `tensors` that were made while active."""
        storages = {_storage_id(t): t.untyped_storage().nbytes() for t in tensors}
        return sum(size for key, size in storages.items() if key in self._known)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_storage_id(t) for t in tree_leaves((args, kwargs)) if torch.is_tensor(t)}
        for tensor in tree_leaves(result):
            if torch.is_tensor(tensor) and _storage_id(tensor) not in given | self._known:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size_bytes = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._drop, key, size_bytes)

    def _drop(self, key: int, size_bytes: int) -> None:
        self._known.discard(key)
        self.live_bytes -= size_bytes


def _storage_id(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
