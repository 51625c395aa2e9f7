"""Print what a diagnosis found: the first cause with its evidence and advice, then the rest."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.bundle.findings import Finding, Rank
from orchestrator.bundle.report import Report
from orchestrator.bundle.screen import Screen

EVIDENCE_SHOWN = 6


def show_findings(report: Report, screen: Screen) -> None:
    """Print the first cause, and one line for each of the others."""
    cause = report.cause
    if cause is None:
        for note in report.findings:
            screen.line(f"Note: {note.sentence}", "dim")
        return
    screen.heading("First cause")
    _show_whole(cause, screen, EVIDENCE_SHOWN)
    others = [finding for finding in report.findings if finding is not cause]
    if others:
        screen.line("  What else was seen:")
    for finding in others:
        screen.line(f"    {finding.sentence} [{_labels(finding)}]", "dim")


def show_diagnosis(report: Report, screen: Screen) -> None:
    """Print every finding whole, the first cause first."""
    cause = report.cause
    if cause is None:
        screen.heading(report.all_clear)
    else:
        screen.heading("First cause")
        _show_whole(cause, screen, None)
    rest = [finding for finding in report.findings if finding is not cause]
    _show_group("Also went wrong", (f for f in rest if f.rank < Rank.SYMPTOM), screen)
    _show_group("Symptoms", (f for f in rest if f.rank == Rank.SYMPTOM), screen)
    _show_group("Notes", (f for f in rest if f.rank == Rank.NOTE), screen)


def place_of(finding: Finding) -> str:
    """Return `stage 1, host beta, phase decode, cause killed`, as far as they are known."""
    parts = [] if finding.stage is None else [f"stage {finding.stage}"]
    parts += [f"host {finding.host}"] if finding.host else []
    parts += [f"phase {finding.phase}"] if finding.phase else []
    return ", ".join([*parts, f"cause {finding.cause or finding.rule}"])


def _show_group(title: str, findings: Iterable[Finding], screen: Screen) -> None:
    group = tuple(findings)
    if group:
        screen.heading(title)
    for finding in group:
        _show_whole(finding, screen, EVIDENCE_SHOWN)


def _show_whole(finding: Finding, screen: Screen, evidence_shown: int | None) -> None:
    style = {Rank.SYMPTOM: "yellow", Rank.NOTE: "dim"}.get(finding.rank, "red")
    screen.line(f"  {finding.sentence}", style)
    screen.line(f"    {place_of(finding)}", "dim")
    for evidence in finding.evidence[:evidence_shown]:
        screen.line(f"    {evidence.where}: {evidence.text}")
    screen.line(f"  What to do: {finding.advice}.")


def _labels(finding: Finding) -> str:
    places = ", ".join(evidence.where for evidence in finding.evidence[:2])
    return f"{finding.rank.name.lower()}; {places}" if places else finding.rank.name.lower()
