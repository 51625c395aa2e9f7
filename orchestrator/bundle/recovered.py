"""Tell what was lost for good from what was brought back."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.bundle.evidence import with_evidence
from orchestrator.bundle.findings import Evidence, Finding, Rank
from orchestrator.bundle.lookup import events
from orchestrator.bundle.reader import Bundle, Kept
from orchestrator.bundle.records import RecoveryRecord
from orchestrator.bundle.words import printable, span
from worker.protocol.events import WorkerReady
from worker.protocol.exits import ExitCode


def mark_recovered(bundle: Bundle, finding: Finding) -> Finding:
    """Make a note of a stage's loss that the run did not suffer from, else change nothing.

    The stage served again later, or the run went well without it: its answer was whole by then.
    """
    if finding.stage is None or finding.rank not in (Rank.CAUSE, Rank.SYMPTOM):
        return finding
    mended = [
        kept
        for kept in bundle.recoveries
        if kept.value.ok and kept.value.stage == finding.stage and _end_ms(kept) >= finding.at_ms
    ]
    if not mended:
        went_well = bundle.end is not None and bundle.end.exit_code == ExitCode.OK
        return _as_note(finding, "the run went well without it") if went_well else finding
    first = min(mended, key=_end_ms)
    record = first.value
    where = "" if record.new_host == record.host else f" on {printable(record.new_host)}"
    took = span((record.restart_ms or 0.0) + (record.replay_ms or 0.0))
    if _has_served(bundle, finding):
        told = f"it was brought back{where} in {took}, {record.tokens} tokens replayed"
    else:
        told = f"it was started{f'{where} instead' if where else ' again'} in {took}"
    return with_evidence(
        _as_note(finding, told),
        [Evidence(first.where, f"attempt {record.attempt} of {record.most_attempts}: ok")],
    )


def _has_served(bundle: Bundle, finding: Finding) -> bool:
    """Tell whether the stage had been ready before: else there was nothing to bring back."""
    ready = events(bundle, WorkerReady, finding.stage)
    return any(seen.wall_ms <= finding.at_ms for seen in ready)


def _as_note(finding: Finding, told: str) -> Finding:
    return replace(
        finding,
        rank=Rank.NOTE,
        sentence=f"{finding.sentence}; {told}",
        advice=f"if it comes again: {finding.advice}",
    )


def _end_ms(kept: Kept[RecoveryRecord]) -> float:
    record = kept.value
    return record.wall_ms + (record.restart_ms or 0.0) + (record.replay_ms or 0.0)
