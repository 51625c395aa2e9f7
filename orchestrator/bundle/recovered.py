"""Tell what was lost for good from what was brought back."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.bundle.evidence import with_evidence
from orchestrator.bundle.findings import Evidence, Finding, Rank
from orchestrator.bundle.reader import Bundle, Kept
from orchestrator.bundle.records import RecoveryRecord
from orchestrator.bundle.words import printable, span


def mark_recovered(bundle: Bundle, finding: Finding) -> Finding:
    """Make a note of a stage's loss where the stage served again later, else change nothing."""
    if finding.stage is None or finding.rank not in (Rank.CAUSE, Rank.SYMPTOM):
        return finding
    mended = [
        kept
        for kept in bundle.recoveries
        if kept.value.ok and kept.value.stage == finding.stage and _end_ms(kept) >= finding.at_ms
    ]
    if not mended:
        return finding
    first = min(mended, key=_end_ms)
    record = first.value
    where = "" if record.new_host == record.host else f" on {printable(record.new_host)}"
    took = span((record.restart_ms or 0.0) + (record.replay_ms or 0.0))
    told = f"it was brought back{where} in {took}, {record.tokens} tokens replayed"
    return with_evidence(
        replace(
            finding,
            rank=Rank.NOTE,
            sentence=f"{finding.sentence}; {told}",
            advice=f"nothing now; if it comes again: {finding.advice}",
        ),
        [Evidence(first.where, f"attempt {record.attempt} of {record.most_attempts}: ok")],
    )


def _end_ms(kept: Kept[RecoveryRecord]) -> float:
    record = kept.value
    return record.wall_ms + (record.restart_ms or 0.0) + (record.replay_ms or 0.0)
