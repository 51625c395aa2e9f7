"""What ran where: the plan, the handshake and the ready line of a stage, and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.bundle.fetch_facts import FetchFacts, fetch_among
from orchestrator.bundle.lookup import ready_of
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.records import StageRecord
from worker.protocol.events import (
    Device,
    Event,
    Heartbeat,
    LoadingModel,
    MemoryCheck,
    ModelLoaded,
    Starting,
)

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """What is known of a stage; None where the bundle does not tell.

    Attributes:
        state: ready, recovered (it was lost and serves again), failed or not ready.
        need_bytes: predicted before loading; `weights_bytes` of it are weights.
        free_bytes: what was free then.
        held_bytes: bytes of the parameters and buffers that were loaded.
        rss_bytes, peak_rss_bytes: resident set size, the newest and the highest reported.
        fetch: what was fetched of its weights, and how.
    """

    stage: int
    host: str
    transport: str | None
    layers: str | None
    num_layers: int | None
    device: str | None
    device_name: str | None
    threads: int | None
    quantization: str | None
    model_id: str | None
    model_type: str | None
    version: str | None
    protocol_version: str | None
    python: str | None
    torch: str | None
    transformers: str | None
    pid: int | None
    state: str
    weights_bytes: int | None
    kv_bytes: int | None
    need_bytes: int | None
    free_bytes: int | None
    held_bytes: int | None
    rss_bytes: float | None
    peak_rss_bytes: float | None
    notes: tuple[str, ...]
    fetch: FetchFacts | None = None


def facts_of(bundle: Bundle, stage: int, host: str, told: Sequence[Event]) -> StageFacts:
    """Return what the bundle knows of a stage's newest process.

    Args:
        bundle: the bundle.
        stage: index of the stage.
        host: label of its host.
        told: the events of all its processes, in order.
    """
    planned = next((s for s in bundle.manifest.stages if s.stage == stage), None)
    planned = planned or StageRecord(stage=stage, host=host, transport="")
    ready = ready_of(bundle, stage)
    hello = _newest(told, Starting)
    device = _newest(told, Device)
    loading = _newest(told, LoadingModel)
    check = _newest(told, MemoryCheck)
    loaded = _newest(told, ModelLoaded)
    beat = _newest(told, Heartbeat)
    rss_mb = [event.rss_mb for event in (loaded, beat) if event]
    peaks_mb = [*rss_mb, *([loaded.peak_rss_mb] if loaded else [])]
    layers = loading.layer_range if loading else planned.layer_range
    return StageFacts(
        stage=stage,
        host=host,
        transport=planned.transport or None,
        layers=":".join(map(str, ready.layer_range)) if ready else layers,
        num_layers=ready.total_blocks if ready else None,
        device=ready.device if ready else device.device if device else planned.device,
        device_name=device.name if device else None,
        threads=device.threads if device else None,
        quantization=ready.quantization
        if ready
        else loading.quantization
        if loading
        else planned.quantization,
        model_id=ready.model_id if ready else loading.model_id if loading else None,
        model_type=ready.model_type if ready else loading.model_type if loading else None,
        version=hello.version if hello else None,
        protocol_version=hello.protocol_version if hello else None,
        python=hello.python if hello else None,
        torch=hello.torch if hello else None,
        transformers=hello.transformers if hello else None,
        pid=hello.pid if hello else None,
        state=_state(bundle, stage, ready is not None),
        weights_bytes=check.weights_bytes if check else None,
        kv_bytes=check.kv_bytes if check else None,
        need_bytes=check.need_bytes if check else None,
        free_bytes=check.free_bytes if check else None,
        held_bytes=loaded.weights_bytes if loaded else None,
        rss_bytes=rss_mb[-1] * 1e6 if rss_mb else None,
        peak_rss_bytes=max(peaks_mb) * 1e6 if peaks_mb else None,
        notes=loaded.notes if loaded else (),
        fetch=fetch_among(told),
    )


def _state(bundle: Bundle, stage: int, is_ready: bool) -> str:
    lost_ms = [kept.value.wall_ms for kept in bundle.failures if kept.value.stage == stage]
    back_ms = [k.value.wall_ms for k in bundle.recoveries if k.value.stage == stage and k.value.ok]
    if lost_ms:
        # An attempt begins after the failure that it mends.
        return "recovered" if back_ms and max(back_ms) >= max(lost_ms) else "failed"
    return "ready" if is_ready else "not ready"


def _newest(told: Sequence[Event], kind: type[E]) -> E | None:
    return next((event for event in reversed(told) if isinstance(event, kind)), None)
