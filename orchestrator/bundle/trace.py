"""A bundle as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.

The format is the "Trace Event Format" of the Chromium project, which Perfetto documents too:
https://perfetto.dev/docs/getting-started/other-formats
Times are in microseconds since the run began, all by the orchestrator's clock. Spans of one track
must not overlap unless one lies within the other, so what overlaps goes on tracks side by side.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.bundle.lookup import stages_of
from orchestrator.bundle.processes import Process, processes_of
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.spans import spans_of
from orchestrator.bundle.startup import starts_of
from orchestrator.bundle.trace_tracks import Span, Tracks
from orchestrator.bundle.words import printable
from worker.protocol.events import Heartbeat, ModelLoaded, SessionEvicted
from worker.protocol.schema import to_fields

ORCHESTRATOR = 1
FIRST_STAGE = 100  # The "process id" of stage 0.


def trace_of(bundle: Bundle) -> dict[str, Any]:
    """Return the trace as a JSON object."""
    processes = processes_of(bundle)
    tracks = Tracks(_begin_ms(bundle, processes))
    tracks.process(ORCHESTRATOR, f"orchestrator · {printable(bundle.manifest.host) or 'here'}")
    tracks.spans(ORCHESTRATOR, "requests", _requests(bundle))
    tracks.spans(ORCHESTRATOR, "recoveries", _recoveries(bundle), nest=True)
    for stage, host in stages_of(bundle).items():
        pid = FIRST_STAGE + stage
        own = tuple(process for process in processes if process.stage == stage)
        tracks.process(pid, f"stage {stage} · {printable(host)}")
        tracks.spans(pid, "start-up", _starts(own, tracks.begin_ms), nest=True)
        tracks.spans(pid, "ops in the worker", _ops(own))
        tracks.spans(pid, "ops as the orchestrator waited", _calls(bundle, stage))
        _counters(tracks, pid, own)
    _instants(tracks, bundle, processes)
    return {
        "traceEvents": tracks.events(),
        "displayTimeUnit": "ms",
        "otherData": {
            "bundle": printable(str(bundle.path)),
            "version": printable(bundle.manifest.version),
            "started": printable(bundle.manifest.started),
            "clock": "the orchestrator's; 0 is the start of the run",
        },
    }


def trace_json(bundle: Bundle) -> str:
    """Return the trace as the text of a JSON file."""
    return json.dumps(trace_of(bundle), separators=(",", ":"), allow_nan=False) + "\n"


def _begin_ms(bundle: Bundle, processes: Iterable[Process]) -> float:
    known = [bundle.manifest.wall_ms] if bundle.manifest.wall_ms else []
    known += [process.started_ms for process in processes] if not known else []
    known += [kept.value.wall_ms for kept in bundle.ops] if not known else []
    return min(known, default=0.0)


def _requests(bundle: Bundle) -> Iterator[Span]:
    for kept in bundle.requests:
        request = kept.value
        facts = {name: value for name, value in to_fields(request).items() if name != "options"}
        yield Span(f"request {request.rid}", request.wall_ms, request.duration_ms, facts)


def _recoveries(bundle: Bundle) -> Iterator[Span]:
    for kept in bundle.recoveries:
        recovery = kept.value
        restart_ms, replay_ms = recovery.restart_ms or 0.0, recovery.replay_ms or 0.0
        took_ms = restart_ms + replay_ms
        name = f"stage {recovery.stage}: try {recovery.attempt}"
        yield Span(
            name if recovery.ok else f"{name} (failed)",
            recovery.wall_ms,
            took_ms,
            to_fields(recovery),
        )
        if restart_ms and replay_ms:
            yield Span("restart", recovery.wall_ms, restart_ms, {})
            yield Span("replay", recovery.wall_ms + restart_ms, replay_ms, {})


def _starts(processes: tuple[Process, ...], begin_ms: float) -> Iterator[Span]:
    for process in processes:
        last_ms = process.at_ms(process.seen[-1])
        for start in starts_of((process,), begin_ms):
            for phase in start.phases:
                at_ms = begin_ms + phase.start_ms
                if phase.took_ms is None:
                    yield Span(f"{phase.name} (no end)", at_ms, max(0.0, last_ms - at_ms), {})
                else:
                    yield Span(phase.name, at_ms, phase.took_ms, {})


def _ops(processes: tuple[Process, ...]) -> Iterator[Span]:
    for span in spans_of(processes):
        fields = to_fields(span.event)
        yield Span(span.event.op, span.start_ms, span.took_ms, fields)


def _calls(bundle: Bundle, stage: int) -> Iterator[Span]:
    for kept in bundle.ops:
        call = kept.value
        if call.stage == stage:
            yield Span(call.op, call.wall_ms, call.duration_ms, to_fields(call))


def _counters(tracks: Tracks, pid: int, processes: Iterable[Process]) -> None:
    for process in processes:
        for seen in process.seen:
            at_ms = process.at_ms(seen)
            if isinstance(seen.event, (Heartbeat, ModelLoaded)):
                tracks.counter(pid, "resident memory", at_ms, {"MB": seen.event.rss_mb})
            if isinstance(seen.event, Heartbeat) and seen.event.kv_bytes is not None:
                tracks.counter(pid, "KV caches", at_ms, {"MB": seen.event.kv_bytes / 1e6})


def _instants(tracks: Tracks, bundle: Bundle, processes: Iterable[Process]) -> None:
    for failure in (kept.value for kept in bundle.failures):
        name, facts = f"failure: {failure.kind}", {"sentence": failure.sentence}
        tracks.instant(FIRST_STAGE + failure.stage, name, failure.wall_ms, facts)
    for end in (kept.value for kept in bundle.exits):
        name = f"process ended: {end.signal or f'exit {end.exit_code}'}"
        told = {"sentence": end.sentence, "asked for": "yes" if end.expected else "no"}
        tracks.instant(FIRST_STAGE + end.stage, name, end.wall_ms, told)
    for process in processes:
        for seen in process.seen:
            if isinstance(seen.event, SessionEvicted):
                freed = {"bytes_freed": seen.event.bytes_freed}
                at_ms = process.at_ms(seen)
                tracks.instant(FIRST_STAGE + process.stage, "KV cache evicted", at_ms, freed)
