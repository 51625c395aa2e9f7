"""Keep the keys, values and states of one request on one stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from worker.model.errors import CannotCrop
from worker.model.kv_ghost import ghost_layer
from worker.model.kv_layers import GrowingLayer, RewindableSlidingLayer, copied, tensors_in

# layers whose tensors are replaced, never written in place: keeping the references is a snapshot
_FUNCTIONAL = (DynamicLayer, DynamicIndexedLayer, DynamicSlidingWindowLayer, RewindableSlidingLayer)


@dataclass(frozen=True)
class CacheSnapshot:
    """What a cache held at one time. Good until the cache is cropped below `floor`."""

    seen: int
    floor: int
    states: dict[int, Any]
    before: CacheSnapshot | None = None


class StageCache(DynamicCache):
    """A cache with an entry for each layer of the whole model, of which it fills its own.

    Entries of foreign layers hold nothing but report the right length: masks and positions
    are made from entry 0, or from the first entry of a kind, whichever stage holds it.

    Args:
        config: of the whole model.
        own_layers: the cache indices that this stage writes.
        max_length: the most positions ever to be held, so that memory is not over-allocated.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        own_layers: tuple[int, ...],
        *,
        max_length: int | None = None,
    ) -> None:
        super().__init__(config=config)
        self.seen = 0
        self.own_layers = own_layers
        self._before: CacheSnapshot | None = None
        for i, layer in enumerate(self.layers):
            if i not in own_layers:
                self.layers[i] = layer if type(layer) is DummyLayer else ghost_layer(layer, self)
            elif type(layer) is DynamicLayer:
                self.layers[i] = GrowingLayer(max_length)
            elif type(layer) is DynamicSlidingWindowLayer:
                self.layers[i] = RewindableSlidingLayer(layer.sliding_window)

    def _own(self) -> list[Any]:
        return [self.layers[i] for i in self.own_layers]

    @property
    def size_bytes(self) -> int:
        """Bytes held, the copy kept for going one op back included."""
        if self.only_grows:
            return sum(layer.store_bytes for layer in self._own())
        return sum(self.entry_bytes().values())

    @property
    def only_grows(self) -> bool:
        """Whether every layer keeps all keys and values, so that going back takes no copies."""
        return all(type(self.layers[i]) is GrowingLayer for i in self.own_layers)

    def entry_bytes(self) -> dict[int, int]:
        """Return the bytes of each entry that this stage writes; a shared storage counts once."""
        known: set[int] = set()
        found: dict[int, int] = {}
        before = self._before.states if self._before else {}
        for i in self.own_layers:
            found[i] = 0
            for tensor in tensors_in([vars(self.layers[i]), before.get(i)]):
                storage = tensor.untyped_storage()
                if storage._cdata not in known:
                    known.add(storage._cdata)
                    found[i] += storage.nbytes()
        return found

    def tensors(self) -> Iterator[torch.Tensor]:
        """Give what the entries of this stage hold, without the copies of one op before."""
        return tensors_in([vars(layer) for layer in self._own()])

    def previous_tensors(self) -> Iterator[torch.Tensor]:
        """Give what is kept only to go one op back."""
        held = {tensor.untyped_storage()._cdata for tensor in self.tensors()}
        kept = tensors_in(self._before.states if self._before else {})
        return (tensor for tensor in kept if tensor.untyped_storage()._cdata not in held)

    def can_crop(self, length: int) -> bool:
        """Say whether `crop_to(length)` would work.

        Attention layers go back to any length (sliding ones as far as they remember);
        recurrent ones only to where the last op began.
        """
        if not 0 <= length <= self.seen:
            return False
        drop = self.seen - length
        kept = self._before.states if self._before and self._before.seen == length else {}
        return drop == 0 or all(
            i in kept or _can_drop(self.layers[i], drop) for i in self.own_layers
        )

    @torch.inference_mode()
    def crop_to(self, length: int) -> None:
        """Forget everything from position `length` on.

        Raises:
            CannotCrop: see `can_crop`; nothing is changed.
        """
        if not self.can_crop(length):
            raise CannotCrop(
                f"this model's cache cannot go back from {self.seen} to {length} positions; "
                "start the request again at position 0"
            )
        drop = self.seen - length
        if drop == 0:
            return
        for i in self.own_layers:
            layer: Any = self.layers[i]
            if _can_drop(layer, drop):
                layer.crop(-drop)
            elif self._before is not None:
                _restore(layer, self._before.states[i])
        self.seen = length
        self._before = None

    @torch.inference_mode()
    def snapshot(self, floor: int | None = None) -> CacheSnapshot:
        """Remember the present state, so that `restore` brings it back.

        Cheap for attention; recurrent states are copied. With `floor`, the snapshot also
        survives a crop to that length.
        """
        at = self.seen if floor is None else floor
        return CacheSnapshot(
            self.seen, at, {i: _state(self.layers[i], at) for i in self.own_layers}, self._before
        )

    @torch.inference_mode()
    def restore(self, snapshot: CacheSnapshot) -> None:
        """Bring back the state of `snapshot`, which stays good."""
        for i, state in snapshot.states.items():
            _restore(self.layers[i], state)
        self.seen = snapshot.seen
        self._before = snapshot.before

    def advance(self, num_tokens: int) -> None:
        """Count in positions that were written to the stores of all layers, as one op."""
        for layer in self._own():
            layer.advance(num_tokens)
        self.count_in(num_tokens)

    def count_in(self, num_tokens: int) -> None:
        """Count in positions that every layer has, which only grow, as one op."""
        self._before = CacheSnapshot(self.seen, self.seen, {})
        self.seen += num_tokens

    def forget_from(self, length: int) -> None:
        """Take back, in layers that only grow, positions that have not been counted in."""
        for layer in self._own():
            layer.crop(min(length - layer.length, 0))

    @contextmanager
    def appending(self, num_tokens: int) -> Iterator[None]:
        """Count `num_tokens` in when the block succeeds; when it raises, change nothing."""
        for layer in self._own():
            if isinstance(layer, RewindableSlidingLayer):
                layer.settle()
        before = self.snapshot()
        try:
            yield
        except BaseException:
            self.restore(before)
            raise
        self.seen += num_tokens
        # attention layers can drop the op again themselves; what cannot needs its old state
        kept = {i: s for i, s in before.states.items() if not _can_drop(self.layers[i], num_tokens)}
        self._before = CacheSnapshot(before.seen, before.floor, kept)


def _can_drop(layer: Any, num_tokens: int) -> bool:
    if type(layer) is RewindableSlidingLayer:
        return layer.can_drop(num_tokens)
    return type(layer) in (GrowingLayer, DynamicLayer, DynamicIndexedLayer, DummyLayer)


def _state(layer: Any, floor: int) -> Any:
    if type(layer) is GrowingLayer:
        return layer.mark(floor)
    if type(layer) in _FUNCTIONAL or type(layer) is DummyLayer:
        return dict(vars(layer))
    return copied(vars(layer))


def _restore(layer: Any, state: Any) -> None:
    if type(layer) is GrowingLayer:
        layer.rewind(state)
        return
    kept = state if type(layer) in _FUNCTIONAL else copied(state)
    vars(layer).clear()
    vars(layer).update(kept)
