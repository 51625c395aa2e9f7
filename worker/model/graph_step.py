"""Do a decode step by replaying CUDA graphs, with attention between them.

The step is written down as in `decode_step`, and cut. Pieces that are alike at each position are
recorded, one graph each, on tensors that stay where they are. What goes along with the position is
run in between by torch's interpreter: writing to the cache and attention over all of it, whose
shapes change at each step and which may lie anywhere. So the kernels are those of the model's own
forward, with the same shapes, and the cache grows as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from worker.model.graph_parts import Part, Recording
from worker.model.graphs import Graphs
from worker.model.kv import StageCache
from worker.model.run import StageRunner
from worker.model.step_trial import WRITTEN_AT, StepTrial, Want
from worker.model.tape import CannotReplay, Ref, merged
from worker.model.tape_cut import cut, moving_refs
from worker.model.tape_fuse import without_twins

# Near the first position, where the cache grows, and where it has grown again.
_COMPARED_AT = (2, 63, 130)
_STEPS_EACH = 3


@dataclass(frozen=True, eq=False, repr=False)
class GraphStep:
    """One position of one request, whose cache holds at least one.

    Attributes:
        want: what comes out.
        static_bytes: memory of the tensors that stay where they are, beside weights.
    """

    want: Want
    static_bytes: int
    _parts: Sequence[Part]
    # of an input and, where needed, its token id
    _inputs: Sequence[torch.Tensor]
    _output: Ref
    _held: dict[Ref, torch.Tensor]

    def run(self, x: torch.Tensor, cache: StageCache, tokens: torch.Tensor | None) -> torch.Tensor:
        """Do what `StageRunner.forward` does with these; on an exception the cache is as it was."""
        given = [x] if tokens is None else [x, tokens]
        for held, new in zip(self._inputs, given, strict=True):
            held.copy_(new)
        layers: list[Any] = [cache.layers[i] for i in cache.own_layers]
        stores = [store for layer in layers for store in layer.stores_with_room(1)]
        first = len(self._inputs)
        values = {Ref(None, first + i): store for i, store in enumerate(stores)}
        for part in self._parts:
            part.do(values, cache.seen)
        output = values[self._output] if self._output in values else self._held[self._output]
        # the next step writes over what is held
        output = output.clone()
        cache.advance(1)
        return output

    def fits(self, x: torch.Tensor, cache: object, want: str) -> bool:
        """Say whether a forward is a step of this kind."""
        held = self._inputs[0]
        is_one = x.shape == held.shape and x.dtype == held.dtype and want == self.want
        return is_one and isinstance(cache, StageCache) and cache.seen > 0


@torch.inference_mode()
def learn_graph_step(runner: StageRunner, graphs: Graphs) -> GraphStep:
    """Write down, cut, record and compare the decode step of a loaded stage; some steps of time.

    Raises:
        CannotReplay: it cannot be done for this model, or the bits would differ.
        RuntimeError: a piece holds an op that cannot be recorded.
    """
    trial = StepTrial(runner)
    first, second = (trial.written_down(position) for position in WRITTEN_AT)
    tape = without_twins(merged(first, second, trial.inputs, WRITTEN_AT), trial.inputs)
    fixed = 1 + int(runner.needs_tokens)
    steps = {position: trial.inputs_at(position) for position in WRITTEN_AT}
    spans = cut(tape, moving_refs(tape, steps, fixed))
    if not any(span.is_fixed for span in spans):
        raise CannotReplay("no part of a step is alike at each position")
    at = WRITTEN_AT[0]
    recording = Recording(tape, steps[at], fixed)
    parts = recording.parts(spans, graphs, at)
    inputs = [recording.held[Ref(None, place)] for place in range(fixed)]
    size_bytes = recording.static_bytes
    found = GraphStep(trial.want, size_bytes, parts, inputs, tape.output, recording.held)
    for position in _COMPARED_AT:
        if runner.max_context is None or position + _STEPS_EACH <= runner.max_context:
            trial.compare(found, position, steps=_STEPS_EACH)
    return found
