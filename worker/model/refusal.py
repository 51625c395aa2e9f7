"""Refuse a stage that does not fit, and say what would."""

from __future__ import annotations

import math
from contextlib import suppress

from worker.failures import LoadFailed
from worker.model.errors import UnsupportedModel
from worker.model.limits import FreeMemory
from worker.model.loaded import StageRequest
from worker.model.memory import MemoryEstimate
from worker.model.quantize import choose
from worker.model.quantized_cost import QUANTIZATIONS
from worker.model.weight_size import WeightSize, weight_size
from worker.protocol.exits import ExitCode

_MIB = 1 << 20
# positions are advised in steps that look like a choice
_CONTEXT_STEP = 64


def check_memory(request: StageRequest, estimate: MemoryEstimate, free: FreeMemory) -> None:
    """Refuse a stage that would not fit, before any weight is loaded.

    Raises:
        LoadFailed: with the parts, the sum, what is free and what would fit; exit code 4.
    """
    if estimate.need_bytes <= free.free_bytes:
        return
    stage = request.plan.sliced.stage
    raise LoadFailed(
        f"layers {stage} of the model need {_size_text(estimate.need_bytes)} "
        f"({_size_text(estimate.weights_bytes)} weights as {request.options.quantization} + "
        f"{_size_text(estimate.kv_bytes)} KV cache at {estimate.max_context} positions + "
        f"{_size_text(estimate.scratch_bytes)} scratch + "
        f"{_size_text(estimate.process_bytes)} libraries), but "
        f"{_size_text(free.free_bytes)} are free on {request.options.device} ({free.limit}); "
        f"{_advice(request, estimate, free)}",
        ExitCode.OUT_OF_MEMORY,
    )


def _advice(request: StageRequest, estimate: MemoryEstimate, free: FreeMemory) -> str:
    """Say which single change would make the stage fit."""
    missing_bytes = estimate.need_bytes - free.free_bytes
    ways: list[str] = []
    layers = _layers_that_fit(request, estimate, missing_bytes)
    stage = request.plan.sliced.stage
    if layers:
        ways.append(f"layers {stage.shard_start}:{stage.shard_start + layers} would fit")
    ways += [
        f"--quantization {quantization} would fit"
        for quantization in _smaller(request, estimate, missing_bytes)
    ]
    if missing_bytes < estimate.kv_bytes:
        positions = estimate.max_context * (estimate.kv_bytes - missing_bytes)
        fitting = positions // estimate.kv_bytes // _CONTEXT_STEP * _CONTEXT_STEP
        if fitting:
            ways.append(f"--max-context {fitting} would fit")
    if free.limit.startswith("--memory-limit"):
        ways.append("raise the limit (memory= in a hosts file)")
    return ", or ".join(ways) or "give this host fewer layers, or use one with more memory"


def _layers_that_fit(request: StageRequest, estimate: MemoryEstimate, missing_bytes: int) -> int:
    """How many layers from the first on would fit; the head would go to another stage."""
    options = request.options
    size = _size(request, options.quantization)
    left_bytes = missing_bytes - size.after_layers_bytes
    count = len(size.layer_bytes)
    kv_bytes = estimate.kv_bytes // count
    for layer_bytes in reversed(size.layer_bytes):
        if left_bytes <= 0:
            break
        left_bytes -= layer_bytes + kv_bytes
        count -= 1
    return count if left_bytes <= 0 else 0


def _smaller(request: StageRequest, estimate: MemoryEstimate, missing_bytes: int) -> list[str]:
    fitting: list[str] = []
    for quantization in QUANTIZATIONS:
        with suppress(UnsupportedModel):  # a package or a kernel that is not here
            size = _size(request, quantization)
            if estimate.weights_bytes - size.total_bytes >= missing_bytes:
                fitting.append(quantization)
    return fitting


def _size(request: StageRequest, quantization: str) -> WeightSize:
    device = request.options.device
    return weight_size(request.plan, choose(request.plan, quantization, device), device)


def _size_text(size_bytes: int) -> str:
    mib = math.ceil(size_bytes / _MIB)
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.2f} GiB"
