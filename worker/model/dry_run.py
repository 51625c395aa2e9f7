"""Run a planned stage on the meta device: sizes alone, no weights, no arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from worker.model.kv import StageCache
from worker.model.live_bytes import ActivationWatch
from worker.model.load_options import LoadOptions
from worker.model.loaded import LoadedStage
from worker.model.plan import WEIGHT_DTYPE, StagePlan
from worker.model.run import StageRunner
from worker.model.support import Mode, Support
from worker.model.thinning import thinned

# layers of the usual kinds take 30 to 200 operations, a loop over 8192 positions 100 000
_MAX_STEPS_PER_LAYER = 1000
_SHORT = 16


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a full cache and the last prefill chunk before it take.

    Attributes:
        kv_bytes: the cache of one request at the maximum context.
        activation_bytes: the most live temporaries of one forward, the cache not included.
        entry_bytes: the cache by its entries, as `StageCache.entry_bytes`.
    """

    kv_bytes: int
    activation_bytes: int
    entry_bytes: Mapping[int, int] = field(default_factory=dict)


def dry_run(plan: StagePlan, *, max_context: int, prefill_chunk: int) -> DryRun | None:
    """Fill a cache of `max_context` positions on the meta device and measure the last chunk.

    The last chunk is the largest: its masks and scores span the whole context. One layer of each
    kind is run, which takes some tenths of a second at any size. Where a layer goes position by
    position in a Python loop, which would take minutes, two short runs are extrapolated: such a
    state does not grow, and all else grows by the position. None when an op of the model cannot
    run on the meta device.
    """
    with thinned(plan) as thin:
        run = _dry_run(thin.plan, max_context, prefill_chunk, len(thin.twins))
    if run is None and thin.twins:
        # a layer may read what another one wrote to the cache
        return _dry_run(plan, max_context, prefill_chunk, 0)
    if run is None:
        return None
    entry_bytes = dict(run.entry_bytes)
    for entry, like in thin.entry_twins.items():
        entry_bytes[entry] = entry_bytes[like]
    return DryRun(sum(entry_bytes.values()), run.activation_bytes, entry_bytes)


def _dry_run(
    plan: StagePlan, max_context: int, prefill_chunk: int, num_left_out: int
) -> DryRun | None:
    runner = meta_runner(plan)
    last = min(prefill_chunk, max_context)
    limit = _MAX_STEPS_PER_LAYER * (plan.sliced.stage.num_own_layers - num_left_out + 2)
    try:
        with _StepLimit(limit):
            return _measured(runner, max_context, last)
    except _TooManySteps:
        return _extrapolated(runner, max_context, last)
    except Exception:  # noqa: BLE001 - any op may lack a meta kernel, with any exception
        return None


def _measured(runner: StageRunner, max_context: int, last: int) -> DryRun:
    cache = runner.new_cache(max_length=max_context)
    if max_context > last:
        forward(runner, cache, max_context - last)
    watch = ActivationWatch(cache)
    with watch.over(runner):
        forward(runner, cache, last)
    entry_bytes = cache.entry_bytes()
    return DryRun(sum(entry_bytes.values()), watch.most_bytes(), entry_bytes)


def _extrapolated(runner: StageRunner, max_context: int, last: int) -> DryRun:
    short = _measured(runner, 2 * _SHORT, _SHORT)
    longer = _measured(runner, 4 * _SHORT, 2 * _SHORT)
    entry_bytes: dict[int, int] = {}
    for i, size_bytes in short.entry_bytes.items():
        growth = (longer.entry_bytes[i] - size_bytes) / (2 * _SHORT)
        entry_bytes[i] = max(0, size_bytes + int(growth * (max_context - 2 * _SHORT)))
    activation_growth = (longer.activation_bytes - short.activation_bytes) / _SHORT
    return DryRun(
        sum(entry_bytes.values()),
        max(0, short.activation_bytes + int(activation_growth * (last - _SHORT))),
        entry_bytes,
    )


def meta_runner(plan: StagePlan) -> StageRunner:
    """Make a runner of the planned model; a float32 wire accepts whatever its layers give."""
    model = plan.model
    nn.Module.to(model, WEIGHT_DTYPE)
    for module in model.modules():
        # looks into the ids for padding, only to warn
        vars(module)["warn_if_padding_and_no_attention_mask"] = lambda *_args: None
    loaded = LoadedStage(
        model=model,
        architecture=plan.architecture,
        sliced=plan.sliced,
        layout=plan.layout,
        support=Support(str(model.config.model_type), Mode.FLOAT32),
        options=LoadOptions(),
        read_bytes=0,
        weight_bytes=0,
    )
    return StageRunner(loaded)


def forward(runner: StageRunner, cache: StageCache, seq_len: int) -> None:
    """Run `seq_len` further positions through a `meta_runner`."""
    ids = torch.zeros(1, seq_len, dtype=torch.long, device="meta")
    x = ids
    if not runner.stage.is_first:
        x = torch.zeros(1, seq_len, runner.width, dtype=WEIGHT_DTYPE, device="meta")
    with torch.device("meta"):
        runner.forward(
            x,
            cache,
            tokens=ids if runner.needs_tokens else None,
            want="logits" if runner.stage.is_last else "hidden",
        )


class _TooManySteps(Exception):
    """A loop over positions was met."""


class _StepLimit(TorchDispatchMode):
    """Ends a run that would take too many operations."""

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = limit

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooManySteps
        return func(*args, **(kwargs or {}))
