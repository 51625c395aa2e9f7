"""What a stage was doing when something happened to it."""

from __future__ import annotations

import re

from orchestrator.bundle.findings import Finding
from orchestrator.bundle.lookup import events, process_at
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.words import printable
from worker.protocol.events import Starting, WorkerReady

# A process that was ended by the failure, or ended by itself and so failed, is one of about then.
_SAME_MS = 60_000.0
_PHASE = re.compile(r"\bwhile (connecting|loading|idle|closing|surveying|serving \w+)")


def phase_of(bundle: Bundle, finding: Finding) -> str:
    """Return connecting, loading, serving OP, idle, … as the failure says, else by its events."""
    if finding.stage is None:
        return ""
    process = process_at(bundle, finding.stage, finding.at_ms)
    for kept in bundle.failures:
        failure = kept.value
        is_its = failure.stage == finding.stage and process == process_at(
            bundle, failure.stage, failure.wall_ms
        )
        if is_its and abs(failure.wall_ms - finding.at_ms) < _SAME_MS:
            return printable(failure.phase, 80)
    for end in bundle.exits:
        # The same sentence as the failure's, where that was cut off.
        is_its = end.value.stage == finding.stage and end.value.wall_ms == finding.at_ms
        if is_its and (found := _PHASE.search(end.value.sentence)):
            return found[1]
    return _by_events(bundle, finding.stage, finding.at_ms)


def _by_events(bundle: Bundle, stage: int, at_ms: float) -> str:
    phase = "connecting"
    for seen in events(bundle, Starting, stage):
        phase = "loading" if seen.wall_ms <= at_ms else phase
    for ready in events(bundle, WorkerReady, stage):
        phase = "idle" if ready.wall_ms <= at_ms else phase
    return phase
