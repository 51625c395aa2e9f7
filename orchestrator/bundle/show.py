"""Print a report for people: what ran where, where the time went, what went wrong first."""

from __future__ import annotations

from orchestrator.bundle.report import Report
from orchestrator.bundle.screen import Screen, Table
from orchestrator.bundle.show_stages import show_fetches, show_memory, show_stages, show_starts
from orchestrator.bundle.timings import OpTiming
from orchestrator.bundle.words import printable, span

PROBLEMS_SHOWN = 5
EVIDENCE_SHOWN = 6


def show(report: Report, screen: Screen) -> None:
    """Print every section that the bundle has something for."""
    _show_run(report, screen)
    _show_findings(report, screen)
    show_stages(report.stages, screen)
    show_starts(report.starts, screen)
    show_fetches(report.stages, screen)
    show_memory(report.stages, screen)
    _show_ops(report.ops, screen)
    _show_requests(report, screen)
    if report.problems:
        screen.heading(f"Not readable in this bundle: {len(report.problems)}")
        for problem in report.problems[:PROBLEMS_SHOWN]:
            screen.line(f"  {printable(problem)}", "dim")


def _show_run(report: Report, screen: Screen) -> None:
    manifest = report.manifest
    screen.line(f"Bundle {printable(report.path, 1000)}", "bold")
    if manifest.command:
        # The first word is where the program lies, which differs with how it was installed.
        words = ("orchestrator", *manifest.command[1:])
        screen.line(f"  {printable(' '.join(words), 1000)}")
    state = "left no end (killed, or still running)"
    if report.has_end:
        code = "without an exit code" if report.exit_code is None else f"exit {report.exit_code}"
        state = f"ended: {code}"
    when = manifest.started[:19].replace("T", " ") + " UTC" if manifest.started else "start unknown"
    who = f"stageline {manifest.version or '?'} on {manifest.host or '?'}"
    screen.line(
        printable(f"{who}, {when}, {span(report.duration_ms)}, {state}"),
        "" if report.exit_code == 0 else "yellow",
    )


def _show_findings(report: Report, screen: Screen) -> None:
    cause = report.cause
    if cause is None:
        for note in report.findings:
            screen.line(f"Note: {note.sentence}", "dim")
        return
    screen.heading("First cause")
    screen.line(f"  {cause.sentence}", "red")
    for evidence in cause.evidence[:EVIDENCE_SHOWN]:
        screen.line(f"    {evidence.where}: {evidence.text}")
    screen.line(f"  What to do: {cause.advice}.")
    others = [finding for finding in report.findings if finding is not cause]
    if others:
        screen.line("  What else was seen:")
    for finding in others:
        places = ", ".join(evidence.where for evidence in finding.evidence[:2])
        screen.line(f"    {finding.sentence} [{finding.rank.name.lower()}; {places}]", "dim")


def _show_ops(ops: tuple[OpTiming, ...], screen: Screen) -> None:
    if not ops:
        return
    screen.heading("Time per op (median, total): computing; on the wire; idle before it")
    rows = []
    for op in ops:
        count = f"{op.count} ({op.failed} failed)" if op.failed else str(op.count)
        spreads = (op.compute, op.wire, op.idle)
        times = [
            text
            for spread in spreads
            for text in (span(spread.median_ms), span(spread.total_ms if spread.count else None))
        ]
        rows.append((str(op.stage), printable(op.op, 24), count, *times))
    columns = (">compute", ">total", ">wire", ">total", ">idle", ">total")
    screen.table(Table((">st", "op", ">calls", *columns), tuple(rows)))


def _show_requests(report: Report, screen: Screen) -> None:
    if not report.requests:
        return
    screen.heading("Requests")
    rows = tuple(
        (
            printable(str(request.rid), 20),
            str(request.prompt_tokens),
            str(request.completion_tokens),
            printable(request.finish_reason, 16),
            span(request.ttft_ms),
            span(request.duration_ms),
            "-" if request.decode_tokens_per_s is None else f"{request.decode_tokens_per_s:.4g}",
        )
        for request in report.requests
    )
    columns = (">prompt", ">new", "finish", ">first token", ">all", ">tokens/s")
    screen.table(Table(("request", *columns), rows))
