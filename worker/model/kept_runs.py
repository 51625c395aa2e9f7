"""Remember how much memory a planned stage was found to take, for stages of the same kind."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import nn

from worker.model.circumstances import model_circumstances
from worker.model.dry_run import DryRun, dry_run
from worker.model.plan import WEIGHT_DTYPE, StagePlan
from worker.remembered import NOTHING, Remembered

_KIND = "dry-run"


def remembered_dry_run(
    plan: StagePlan, *, max_context: int, prefill_chunk: int, remembered: Remembered
) -> DryRun | None:
    """Return what `dry_run` does, without the run where an equal one was made here before."""
    depends = None
    if remembered is not NOTHING:
        with suppress(OSError):
            depends = _depends(plan, max_context, prefill_chunk)
    kept = None if depends is None else _read(remembered.get(_KIND, depends))
    if kept is not None:
        nn.Module.to(plan.model, WEIGHT_DTYPE)  # as a dry run leaves it
        return kept
    found = dry_run(plan, max_context=max_context, prefill_chunk=prefill_chunk)
    if depends is not None and found is not None:
        remembered.put(_KIND, depends, _written(found))
    return found


def _depends(plan: StagePlan, max_context: int, prefill_chunk: int) -> list[Any] | None:
    model, sliced = model_circumstances(plan.model), plan.sliced
    if model is None:
        return None
    shape = [str(sliced.stage), sliced.needs_tokens, list(sliced.cache_layers)]
    return [model, shape, max_context, prefill_chunk]


def _written(run: DryRun) -> list[Any]:
    return [run.kv_bytes, run.activation_bytes, sorted(run.entry_bytes.items())]


def _read(kept: Any) -> DryRun | None:
    with suppress(TypeError, ValueError):
        kv_bytes, activation_bytes, entries = kept
        return DryRun(int(kv_bytes), int(activation_bytes), {int(i): int(n) for i, n in entries})
    return None
