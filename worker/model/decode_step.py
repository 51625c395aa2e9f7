"""Do a decode step without the model's Python, which takes a fifth of it in small models.

Two steps of the loaded stage, at two positions, are written down op by op; what differs between
them is the position. The same ops are then run in the same order by torch's own interpreter. A step
far on, at which the cache grows, and the one after it are compared with the model's own forward;
only where every bit agrees, of what comes out and of what is cached, is the short way taken. What
was written down is remembered for models of the same kind; the first of the two comparisons is made
at every start.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from worker.model.kept_tapes import KeptTapes
from worker.model.kv import StageCache
from worker.model.run import StageRunner
from worker.model.step_trial import WRITTEN_AT, StepTrial, Want
from worker.model.tape import Tape, merged
from worker.model.tape_buffers import buffered
from worker.model.tape_fuse import fused, without_twins
from worker.model.tape_products import with_own_products, with_quick_products
from worker.model.tape_script import Step, compiled
from worker.remembered import NOTHING, Remembered

# There the cache grows. What was written down anew is compared at the next position too; a
# remembered one was, and each step takes all weights twice.
_COMPARED_AT, _STEPS_ANEW, _STEPS_REMEMBERED = 64, 2, 1


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
def learn_decode_step(runner: StageRunner, remembered: Remembered = NOTHING) -> DecodeStep:
    """Write down, compile and compare the decode step of a loaded stage; some steps of time.

    Raises:
        CannotReplay: it cannot be done for this model, or the bits would differ.
    """
    tapes = KeptTapes(runner, remembered)
    kept = tapes.get()
    if kept is not None:
        with suppress(Exception):  # of another form, or other bits: it is written down anew
            return _proved(runner, *kept, _STEPS_REMEMBERED)
    trial = StepTrial(runner)
    first, second = (trial.written_down(position) for position in WRITTEN_AT)
    tape = without_twins(merged(first, second, trial.inputs, WRITTEN_AT), trial.inputs)
    found = _proved(runner, trial, tape, _STEPS_ANEW)
    tapes.put(trial, tape)
    return found


def _proved(runner: StageRunner, trial: StepTrial, tape: Tape, steps: int) -> DecodeStep:
    if not runner.loaded.is_mapped:
        tape = fused(tape, trial.inputs)
    with suppress(Exception):  # what a model's ops cannot do, or other bits: as they were
        return _compared(trial, _quickened(runner, trial, tape), steps)
    return _compared(trial, tape, steps)


def _quickened(runner: StageRunner, trial: StepTrial, tape: Tape) -> Tape:
    steps = {position: trial.inputs_at(position) for position in WRITTEN_AT}
    quick = with_quick_products(with_own_products(tape, trial.inputs), trial.inputs)
    return buffered(quick, steps, 1 + int(runner.needs_tokens))


def _compared(trial: StepTrial, tape: Tape, steps: int) -> DecodeStep:
    others = list(tape.outside[trial.inputs :])
    found = DecodeStep(trial.want, compiled(tape, trial.inputs), others)
    trial.compare(found, _COMPARED_AT, steps=steps)
    return found
