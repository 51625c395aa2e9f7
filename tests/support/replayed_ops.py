"""Graphs without a GPU: ops are written down as they run, and run again on the same memory.

It keeps the laws of CUDA graphs that a program can break. A recording gives no numbers until it is
replayed; a replay writes over its results where they lie; what nobody keeps has no lasting place;
and a recording refuses a copy between devices, a wait for a number, and writes to outside tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from worker.model.graphs import Replay


@dataclass(frozen=True, slots=True)
class _Made:
    """Stands for a tensor that an op of the same recording gave."""

    number: int


@dataclass(eq=False)
class _Ops(TorchDispatchMode):
    """Writes down ops with weak references to all tensors, as a graph keeps only addresses."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[tuple[Any, list[Any], Any]] = []
        self.results: list[weakref.ref[torch.Tensor]] = []
        self._numbers: dict[int, int] = {}
        # an id is good as long as its tensor lives
        self._alive: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable or func.overloadpacket.__name__ in ("item", "nonzero"):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        leaves, form = tree_flatten((args, kwargs or {}))
        kept = [self._kept(leaf) for leaf in leaves]
        result = func(*args, **(kwargs or {}))
        self.ops.append((func, kept, form))
        for tensor in tree_leaves(result):
            self._numbers.setdefault(id(tensor), len(self.results))
            self.results.append(weakref.ref(tensor))
            self._alive.append(tensor)
        return result

    def forget(self) -> None:
        """Keep no tensor alive."""
        self._alive.clear()
        self._numbers.clear()

    def _kept(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in self._numbers:
            return _Made(self._numbers[id(leaf)])
        return weakref.ref(leaf)


@dataclass(eq=False)
class ReplayedOps:
    """Records on the CPU; `replays` has the numbers of the records in the order of replays.

    Attributes:
        refuses: the number of the record that fails, as if a library waited in it.
        spoils: whether a replay gives other numbers in its first result.
        fails_at: the number of the record whose replays fail.
    """

    refuses: int | None = None
    spoils: bool = False
    fails_at: int | None = None
    count: int = 0
    replays: list[int] = field(default_factory=list)

    def record(self, work: Callable[[], list[torch.Tensor]]) -> tuple[Replay, list[torch.Tensor]]:
        number = self.count
        self.count += 1
        work()
        ops = _Ops()
        with ops:
            results = work()
            if number == self.refuses:
                raise RuntimeError("operation not permitted when stream is capturing")
        ops.forget()
        for tensor in results:
            if not _is_view_of_outside(tensor, ops):
                tensor.fill_(-1 if tensor.is_floating_point() else 0)

        def replay() -> None:
            if number == self.fails_at:
                raise RuntimeError("an illegal memory access was encountered")
            self.replays.append(number)
            _replay(ops)
            if self.spoils and results_alive:
                tensor = results_alive[0]()
                if tensor is not None:
                    tensor.add_(1)

        results_alive = [weakref.ref(tensor) for tensor in results]
        replay()
        return replay, results


def _is_view_of_outside(tensor: torch.Tensor, ops: _Ops) -> bool:
    """Say whether it lies in memory that was there before the recording."""
    outside = (
        leaf() for _, leaves, _ in ops.ops for leaf in leaves if isinstance(leaf, weakref.ref)
    )
    places = {other.untyped_storage()._cdata for other in outside if other is not None}
    return tensor.untyped_storage()._cdata in places


def _replay(ops: _Ops) -> None:
    made: list[torch.Tensor] = []
    for func, kept, form in ops.ops:
        args, kwargs = tree_unflatten([_found(leaf, made) for leaf in kept], form)
        for fresh in tree_leaves(func(*args, **kwargs)):
            held = ops.results[len(made)]()
            if held is None:
                made.append(fresh)
                continue
            if held.untyped_storage()._cdata != fresh.untyped_storage()._cdata:
                held.copy_(fresh)
            made.append(held)


def _found(leaf: Any, made: Sequence[torch.Tensor]) -> Any:
    if isinstance(leaf, _Made):
        return made[leaf.number]
    if isinstance(leaf, weakref.ref):
        tensor = leaf()
        if tensor is None:
            raise AssertionError("a replay reads memory that nobody keeps")
        return tensor
    return leaf
