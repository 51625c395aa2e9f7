"""Build findings from what a bundle holds: an event, a failure, the end of a process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from orchestrator.bundle.cause import Cause
from orchestrator.bundle.findings import Evidence, Finding, Rank
from orchestrator.bundle.lookup import Seen, kind_of
from orchestrator.bundle.reader import Bundle, Kept
from orchestrator.bundle.records import ExitRecord, FailureRecord
from orchestrator.bundle.words import printable
from worker.protocol.events import Event

E = TypeVar("E", bound=Event)

STDERR_LINES = 3
# What the orchestrator itself notes among a stage's stderr.
OWN_WORDS = "stageline: "
# What a host's kernel said after a SIGKILL; `memory_signs` judges it, for it may be about others.
KERNEL_WORDS = "kernel: "


def of_event(seen: Seen[E], rule: str, text: str, advice: str, cause: Cause) -> Finding:
    """Return a cause that an event tells."""
    return Finding(
        rule=rule,
        cause=cause,
        rank=Rank.CAUSE,
        stage=seen.stage,
        host=seen.host,
        sentence=f"stage {seen.stage} on {seen.host} {text}",
        advice=advice,
        at_ms=seen.wall_ms,
        evidence=(Evidence(seen.where, f"{kind_of(seen.event)}: {text}"),),
    )


def of_exit(
    kept: Kept[ExitRecord],
    rule: str,
    text: str,
    advice: str,
    cause: Cause,
    rank: Rank = Rank.CAUSE,
) -> Finding:
    """Return what the end of a process tells."""
    end = kept.value
    how = end.signal or f"exit code {end.exit_code}"
    asked = "asked for" if end.expected else "not asked for"
    return Finding(
        rule=rule,
        cause=cause,
        rank=rank,
        stage=end.stage,
        host=end.host,
        sentence=f"stage {end.stage} on {end.host} {text}",
        advice=advice,
        at_ms=end.wall_ms,
        evidence=(Evidence(kept.where, f"the process ended with {how}, {asked}"),),
    )


def of_failure(kept: Kept[FailureRecord], rule: str, advice: str, cause: Cause) -> Finding:
    """Return a failure that the orchestrator noted, in its own words."""
    failure = kept.value
    return Finding(
        rule=rule,
        cause=cause,
        phase=printable(failure.phase, 80),
        rank=Rank.CAUSE,
        stage=failure.stage,
        host=failure.host,
        sentence=printable(failure.sentence),
        advice=advice,
        at_ms=failure.wall_ms,
        evidence=(Evidence(kept.where, f"{failure.kind}, phase: {printable(failure.phase)}"),),
        is_told=True,
    )


def failures(bundle: Bundle, kind: str, advice: str, cause: Cause) -> Iterator[Finding]:
    """Yield the failures of one kind."""
    for kept in bundle.failures:
        if kept.value.kind == kind:
            yield of_failure(kept, kind, advice, cause)


def with_evidence(finding: Finding, *more: Iterable[Evidence]) -> Finding:
    """Return the finding with more evidence, each once."""
    every = dict.fromkeys((*finding.evidence, *(item for items in more for item in items)))
    return replace(finding, evidence=tuple(every))


def last_words(bundle: Bundle, stage: int | None) -> list[Evidence]:
    """Return the last lines that a stage itself wrote to stderr."""
    lines = bundle.stderr.get(stage, ()) if stage is not None else ()
    lines = tuple(k for k in lines if not k.value.startswith((OWN_WORDS, KERNEL_WORDS)))
    return [Evidence(kept.where, printable(kept.value)) for kept in lines[-STDERR_LINES:]]
