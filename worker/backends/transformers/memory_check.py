"""See whether a planned stage fits, before any weight is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worker.config import WorkerConfig
from worker.model.limits import FreeMemory
from worker.model.loaded import StageRequest
from worker.model.memory import MemoryEstimate, estimate_memory
from worker.model.refusal import check_memory
from worker.protocol.events import Event, MemoryCheck
from worker.remembered import Remembered


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What a stage needs, and what all its KV caches together may hold."""

    need: MemoryEstimate
    kv_budget_bytes: int


def check_stage_memory(
    request: StageRequest,
    config: WorkerConfig,
    max_context: int,
    emit: Callable[[Event], None],
    remembered: Remembered,
    free_now: Callable[[], FreeMemory],
) -> StageMemory:
    """Tell the figures as an event, and refuse what does not fit into what is free.

    Raises:
        LoadFailed: with the parts, the sum and what is free; exit code 4.
    """
    need = estimate_memory(
        request,
        max_context=max_context,
        prefill_chunk=config.prefill_chunk,
        remembered=remembered,
    )
    free = free_now()
    emit(
        MemoryCheck(
            device=request.options.device,
            fits=need.need_bytes <= free.free_bytes,
            weights_bytes=need.weights_bytes,
            kv_bytes=need.kv_bytes,
            scratch_bytes=need.scratch_bytes,
            process_bytes=need.process_bytes,
            need_bytes=need.need_bytes,
            free_bytes=free.free_bytes,
            limit=free.limit,
        )
    )
    check_memory(request, need, free)
    # One request at full length always fits; of what is left over, others get half.
    spare_bytes = (free.free_bytes - need.need_bytes) // 2
    return StageMemory(need, need.kv_bytes + spare_bytes)
