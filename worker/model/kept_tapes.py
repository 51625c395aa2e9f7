"""Remember what the decode step of a stage does, op by op, for stages of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from worker.model.circumstances import model_circumstances
from worker.model.run import StageRunner
from worker.model.step_trial import StepTrial
from worker.model.tape import CannotReplay, Tape
from worker.model.tape_json import from_json, to_json
from worker.remembered import NOTHING, Remembered

_KIND = "decode-step"


class KeptTapes:
    """The tape of one stage, by all that decides its ops; of its weights only their shapes do."""

    def __init__(self, runner: StageRunner, remembered: Remembered) -> None:
        self._runner = runner
        self._remembered = remembered
        self._depends: list[Any] | None = None
        if remembered is not NOTHING:
            with suppress(OSError):
                self._depends = stage_kind(runner)

    def get(self) -> tuple[StepTrial, Tape] | None:
        """Return a trial of the stage and its tape, which is not proved; None if there is none."""
        if self._depends is None:
            return None
        kept = self._remembered.get(_KIND, self._depends)
        with suppress(Exception):  # of another form: as good as absent
            device = self._runner.device
            like = [(_empty(keys, device), _empty(values, device)) for keys, values in kept["like"]]
            trial = StepTrial(self._runner, like)
            named = dict(_named(self._runner.loaded.model))
            return trial, from_json(kept["tape"], [torch.empty(0)] * trial.inputs, named)
        return None

    def put(self, trial: StepTrial, tape: Tape) -> None:
        """Keep a tape that was proved, where it can be written down."""
        if self._depends is None:
            return
        names = {id(tensor): name for name, tensor in _named(self._runner.loaded.model)}
        with suppress(CannotReplay):
            answer = {
                "tape": to_json(tape, trial.inputs, names),
                "like": [[_form(keys), _form(values)] for keys, values in trial.like],
            }
            self._remembered.put(_KIND, self._depends, answer)


def stage_kind(runner: StageRunner) -> list[Any] | None:
    """Return what of a loaded stage decides its ops; None where that is not all.

    Raises:
        OSError: a file of the model's classes cannot be looked at.
    """
    loaded = runner.loaded
    model = model_circumstances(loaded.model)
    if model is None:
        return None
    return [
        model,
        [str(loaded.stage), str(loaded.support.mode), str(runner.wire_dtype), runner.needs_tokens],
        [repr(loaded.options), loaded.is_mapped],
    ]


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _form(tensor: torch.Tensor) -> list[Any]:
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]


def _empty(form: Any, device: torch.device) -> torch.Tensor:
    (*outer, _, last), dtype = form
    return torch.empty((*outer, 0, last), dtype=getattr(torch, dtype), device=device)
