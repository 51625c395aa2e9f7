"""The timeline of a stage's start, from its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from orchestrator.bundle.lookup import Seen
from orchestrator.bundle.processes import Process
from worker.protocol.events import (
    BootProfile,
    CacheHit,
    DownloadFailed,
    Event,
    FetchingModel,
    Imported,
    Importing,
    LoadingModel,
    ModelFetched,
    ModelLoadBreakdown,
    ModelLoaded,
    ModelLoadFailed,
    Starting,
    WorkerReady,
)


@dataclass(frozen=True, slots=True)
class Phase:
    """One step; `took_ms` is None where its end was never seen. `start_ms`: since the run began."""

    name: str
    start_ms: float
    took_ms: float | None


@dataclass(frozen=True, slots=True)
class Start:
    """The start of one process of a stage, in ms since the run began.

    `loading_ms`: the parts of loading as the worker summed them up; they may overlap the phases.
    """

    stage: int
    host: str
    hello_ms: float
    ready_ms: float | None
    phases: tuple[Phase, ...]
    loading_ms: dict[str, float]


def starts_of(processes: Iterable[Process], run_ms: float) -> Iterator[Start]:
    """Yield the start of each process that said hello; the run began at `run_ms`."""
    for process in processes:
        if process.hello is not None:
            yield _start(process, process.hello, run_ms)


def _start(process: Process, hello: Seen[Event], run_ms: float) -> Start:
    seen = process.seen
    # Where nothing tells when the run began, it begins with this process.
    offset_ms = process.started_ms - run_ms if run_ms else 0.0
    hello_ms = max(0.0, hello.wall_ms - run_ms) if run_ms else hello.uptime_ms
    phases = list(_phases(seen)) or list(_profiled(seen))
    in_order = sorted(phases, key=lambda phase: (phase.start_ms, -(phase.took_ms or 0)))
    ready = [s.uptime_ms for s in seen if isinstance(s.event, WorkerReady)]
    return Start(
        hello.stage,
        hello.host,
        hello_ms,
        offset_ms + ready[-1] if ready else None,
        tuple(replace(phase, start_ms=offset_ms + phase.start_ms) for phase in in_order),
        _loading_ms(seen),
    )


def _phases(seen: Iterable[Seen[Event]]) -> Iterator[Phase]:
    opened: dict[str, float] = {}
    for moment in seen:
        event, at_ms = moment.event, moment.uptime_ms
        match event:
            case Starting():
                yield Phase("start the process", 0.0, at_ms)
            case Importing():
                opened[f"import {event.library}"] = at_ms
            case Imported():
                opened.pop(f"import {event.library}", None)
                yield Phase(f"import {event.library}", at_ms - event.elapsed_ms, event.elapsed_ms)
            case FetchingModel():
                opened["fetch"] = at_ms
            case CacheHit() | ModelFetched() | DownloadFailed() if "fetch" in opened:
                start_ms = opened.pop("fetch")
                name = "find in cache" if isinstance(event, CacheHit) else "fetch"
                yield Phase(name, start_ms, at_ms - start_ms)
            case LoadingModel():
                if (start_ms := opened.pop("fetch", at_ms)) < at_ms:
                    yield Phase("fetch", start_ms, at_ms - start_ms)
                opened["load"] = at_ms
            case ModelLoadFailed() if "load" in opened:
                start_ms = opened.pop("load")
                yield Phase("load (failed)", start_ms, at_ms - start_ms)
            case ModelLoaded():
                start_ms = opened.pop("load", at_ms - event.elapsed_ms)
                yield Phase("load", start_ms, at_ms - start_ms)
    for name, start_ms in opened.items():
        yield Phase(name, start_ms, None)


def _loading_ms(seen: Iterable[Seen[Event]]) -> dict[str, float]:
    parts: dict[str, float] = {}
    for event in (moment.event for moment in seen):
        if isinstance(event, ModelLoadBreakdown):
            parts = {
                "plan": event.plan_ms,
                "weights": event.weights_ms,
                "warm-up": event.warmup_ms,
                "tokenizer": event.tokenizer_ms,
            }
    return {name: took_ms for name, took_ms in parts.items() if took_ms}


def _profiled(seen: Iterable[Seen[Event]]) -> Iterator[Phase]:
    """Yield the phases of a worker that sends no other event than its profile."""
    start_ms = 0.0
    for moment in seen:
        if isinstance(moment.event, BootProfile):
            for name, took_ms in moment.event.phases_ms.items():
                if isinstance(took_ms, (int, float)):
                    yield Phase(name, start_ms, took_ms)
                    start_ms += took_ms
