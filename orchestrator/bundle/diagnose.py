"""Say what went wrong first: run the rules, join what is about one process, causes first.

A new rule is one function from a bundle to findings, its place in RULES and one recorded bundle in
tests/data/bundles. Where several rules speak of one process, the one that stands first in RULES
gives name and advice, the others add their evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from orchestrator.bundle import connect_rules, exit_rules, note_rules, run_rules, start_rules
from orchestrator.bundle.evidence import with_evidence
from orchestrator.bundle.findings import Finding, Rank
from orchestrator.bundle.left_behind import name_left_behind
from orchestrator.bundle.lookup import process_at
from orchestrator.bundle.phase import phase_of
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.recovered import mark_recovered

Rule = Callable[[Bundle], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    start_rules.memory_refused,
    connect_rules.version_mismatch,
    start_rules.cache_damaged,
    start_rules.download_failed,
    start_rules.load_failed,
    connect_rules.unreachable,
    connect_rules.spawn_failed,
    start_rules.protocol_violation,
    start_rules.hung,
    exit_rules.peer_gone,
    exit_rules.killed,
    exit_rules.uncaught,
    start_rules.not_ready,
    exit_rules.crashed,
    start_rules.other_failure,
    run_rules.op_refused,
    run_rules.run_without_end,
    run_rules.run_failed,
    run_rules.interrupted,
    exit_rules.killed_at_the_end,
    note_rules.slow_stage,
    note_rules.slow_link,
    note_rules.clock_off,
)


def diagnose(bundle: Bundle) -> tuple[Finding, ...]:
    """Return the findings, the first cause first; empty for a run that went well."""
    joined: dict[tuple[object, ...], Finding] = {}
    for number, rule in enumerate(RULES):
        for finding in rule(bundle):
            key = _subject(bundle, finding, number)
            first = joined.get(key)
            joined[key] = finding if first is None else _join(first, finding)
    placed = [
        replace(found, phase=found.phase or phase_of(bundle, found)) for found in joined.values()
    ]
    marked = [mark_recovered(bundle, finding) for finding in placed]
    final = [name_left_behind(bundle, finding) for finding in marked]
    return tuple(sorted(final, key=lambda finding: (finding.rank, finding.at_ms)))


def _subject(bundle: Bundle, finding: Finding, number: int) -> tuple[object, ...]:
    """Return what the finding is about; findings about one process are joined."""
    if finding.stage is not None and finding.rank in (Rank.CAUSE, Rank.SYMPTOM):
        return ("process", finding.stage, process_at(bundle, finding.stage, finding.at_ms))
    return (number, finding.sentence)


def _join(first: Finding, other: Finding) -> Finding:
    """Keep the rule and the advice of the first, the words that the user saw, and all evidence."""
    joined = with_evidence(first, other.evidence)
    if other.is_told and not first.is_told:
        joined = replace(joined, sentence=other.sentence, is_told=True)
    return replace(joined, at_ms=min(first.at_ms, other.at_ms))
