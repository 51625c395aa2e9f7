"""The parts of a replayed step: graphs of what is alike at each position, and what lies between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from worker.model.graphs import Graphs, Replay
from worker.model.tape import Ref, Tape
from worker.model.tape_cut import Span, walk
from worker.model.tape_script import compiled_span

Values = dict[Ref, torch.Tensor]


class Part(Protocol):
    """One part of a step."""

    def do(self, values: Values, at: int) -> None:
        """Do it at position `at`; `values` are the tensors that are others at each step."""


@dataclass(frozen=True, slots=True)
class _Replayed:
    replay: Replay

    def do(self, _values: Values, _at: int) -> None:
        self.replay()


@dataclass(frozen=True, slots=True)
class _Between:
    """A part that is run anew; None stands for tensors that are others at each step."""

    run: Callable[[list[torch.Tensor], int], list[torch.Tensor]]
    reads: Sequence[tuple[Ref, torch.Tensor | None]]
    gives: Sequence[tuple[Ref, torch.Tensor | None]]

    def do(self, values: Values, at: int) -> None:
        given = [values[ref] if held is None else held for ref, held in self.reads]
        for (ref, held), output in zip(self.gives, self.run(given, at), strict=True):
            if held is None:
                values[ref] = output
            else:
                held.copy_(output)


class Recording:
    """Makes the parts of a tape, while it does the step once.

    Args:
        inputs: of the step that is done.
        fixed: how many of the inputs are no stores of a cache; they are copied to `held`.

    Attributes:
        held: tensors that replays read and write. Graphs know only where they lie, so they must be
            kept.
    """

    def __init__(self, tape: Tape, inputs: Sequence[torch.Tensor], fixed: int) -> None:
        self._tape = tape
        self._moving = {Ref(None, place): inputs[place] for place in range(fixed, len(inputs))}
        weights = range(len(inputs), len(tape.outside))
        self.held = {Ref(None, place): tape.outside[place] for place in weights}
        self._weights = set(map(_storage, self.held.values()))
        self.held.update((Ref(None, place), _like(inputs[place])) for place in range(fixed))

    @property
    def static_bytes(self) -> int:
        """Memory of what is held beside weights."""
        sizes = {_storage(t): t.untyped_storage().nbytes() for t in self.held.values()}
        return sum(size for storage, size in sizes.items() if storage not in self._weights)

    def parts(self, spans: Sequence[Span], graphs: Graphs, at: int) -> list[Part]:
        """Record the fixed spans at position `at`, compile the others, and do all of them."""
        replayed = {ref for span in spans if span.is_fixed for ref in span.reads}
        return [
            self._recorded(span, graphs, at) if span.is_fixed else self._between(span, at, replayed)
            for span in spans
        ]

    def _recorded(self, span: Span, graphs: Graphs, at: int) -> Part:
        def work() -> list[torch.Tensor]:
            values = {ref: self.held[ref] for ref in span.reads}
            walk(self._tape, span.numbers, values, at)
            return [values[ref] for ref in span.gives]

        replay, results = graphs.record(work)
        self.held.update(zip(span.gives, results, strict=True))
        return _Replayed(replay)

    def _between(self, span: Span, at: int, replayed: set[Ref]) -> Part:
        run = compiled_span(self._tape, span.numbers, span.reads, span.gives)
        reads = [(ref, self.held.get(ref)) for ref in span.reads]
        given = [self._moving[ref] if held is None else held for ref, held in reads]
        for ref, output in zip(span.gives, run(given, at), strict=True):
            if ref in replayed:
                self.held[ref] = _like(output)
            else:
                self._moving[ref] = output
        return _Between(run, reads, [(ref, self.held.get(ref)) for ref in span.gives])


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that lies as the tensor does, so that kernels see no difference."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    if any(size > 1 and step == 0 for size, step in sizes):
        # cannot be written to as it lies
        return tensor.contiguous()
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
