"""Do a decode step without the model's Python, which takes a fifth of it in small models.

Two steps of the loaded stage, at two positions, are written down op by op; what differs between
them is the position. The same ops are then run in the same order by torch's own interpreter. A step
far on, at which the cache grows, is compared with the model's own forward, and only where every bit
agrees, of what comes out and of what is cached, is the short way taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from worker.model.kv import StageCache
from worker.model.run import StageRunner
from worker.model.step_trial import WRITTEN_AT, StepTrial, Want
from worker.model.tape import merged
from worker.model.tape_fuse import fused, without_twins
from worker.model.tape_script import Step, compiled

# There the cache grows.
_COMPARED_AT = 64


@dataclass(frozen=True, eq=False, repr=False)
class DecodeStep:
    """One position of one request, whose cache holds at least one."""

    want: Want
    _step: Step
    _others: list[torch.Tensor]

    def run(self, x: torch.Tensor, cache: StageCache, tokens: torch.Tensor | None) -> torch.Tensor:
        """Do what `StageRunner.forward` does with these; on an exception the cache is as it was."""
        given = [x] if tokens is None else [x, tokens]
        layers: list[Any] = [cache.layers[i] for i in cache.own_layers]
        for layer in layers:
            given += layer.stores_with_room(1)
        output = self._step(given, self._others, cache.seen)
        cache.advance(1)
        return output

    def fits(self, x: torch.Tensor, cache: object, want: str) -> bool:
        """Say whether a forward is a step of this kind."""
        is_one = x.shape[:2] == (1, 1) and want == self.want
        return is_one and isinstance(cache, StageCache) and cache.seen > 0


@torch.inference_mode()
def learn_decode_step(runner: StageRunner) -> DecodeStep:
    """Write down, compile and compare the decode step of a loaded stage; some steps of time.

    Raises:
        CannotReplay: it cannot be done for this model, or the bits would differ.
    """
    trial = StepTrial(runner)
    first, second = (trial.written_down(position) for position in WRITTEN_AT)
    inputs = trial.inputs
    tape = without_twins(merged(first, second, inputs, WRITTEN_AT), inputs)
    if not runner.loaded.is_mapped:
        tape = fused(tape, inputs)
    found = DecodeStep(trial.want, compiled(tape, inputs), list(tape.outside[inputs:]))
    trial.compare(found, _COMPARED_AT)
    return found
