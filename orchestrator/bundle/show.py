"""Print a report for people: what ran where, where the time went, what went wrong first."""

from __future__ import annotations

import shlex

from orchestrator.bundle.records import RecoveryRecord
from orchestrator.bundle.report import Report
from orchestrator.bundle.screen import Screen, Table
from orchestrator.bundle.show_findings import show_findings
from orchestrator.bundle.show_stages import show_fetches, show_memory, show_stages, show_starts
from orchestrator.bundle.words import printable, span

PROBLEMS_SHOWN = 5


def show(report: Report, screen: Screen) -> None:
    """Print every section that the bundle has something for."""
    show_run(report, screen)
    show_findings(report, screen)
    show_stages(report.stages, screen)
    show_starts(report.starts, screen)
    show_fetches(report.stages, screen)
    show_memory(report.stages, screen)
    _show_ops(report, screen)
    _show_requests(report, screen)
    _show_recoveries(report.recoveries, screen)
    if report.problems:
        screen.heading(f"Not readable in this bundle: {len(report.problems)}")
        for problem in report.problems[:PROBLEMS_SHOWN]:
            screen.line(f"  {printable(problem)}", "dim")


def show_run(report: Report, screen: Screen) -> None:
    """Print which bundle this is, what was run, and how it ended."""
    manifest = report.manifest
    screen.line(f"Bundle {printable(report.path, 1000)}", "bold")
    if manifest.command:
        # The first word is where the program lies, which differs with how it was installed.
        words = ("orchestrator", *manifest.command[1:])
        screen.line(f"  {printable(shlex.join(words), 1000)}")
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


def _show_ops(report: Report, screen: Screen) -> None:
    if not report.ops:
        return
    screen.heading("Time per op (median, total): computing; on the wire; idle before it")
    rows = []
    for op in report.ops:
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
    if report.busy:
        shares = ", ".join(f"stage {busy.stage} {busy.share:.0%}" for busy in report.busy)
        window = span(report.busy[0].window_ms)
        screen.line(f"  busy from the first op to the last ({window}): {shares}")


def _show_recoveries(recoveries: tuple[RecoveryRecord, ...], screen: Screen) -> None:
    if not recoveries:
        return
    screen.heading("Lost stages brought back")
    rows = tuple(
        (
            str(recovery.stage),
            moved(recovery),
            f"{recovery.attempt} of {recovery.most_attempts}",
            span(recovery.restart_ms),
            span(recovery.replay_ms),
            str(recovery.requests),
            str(recovery.tokens),
            "serves again" if recovery.ok else printable(recovery.error or "failed", 40),
        )
        for recovery in recoveries
    )
    columns = ("try", ">restart", ">replay", ">requests", ">tokens", "result")
    screen.table(Table((">st", "host", *columns), rows))


def moved(recovery: RecoveryRecord) -> str:
    """Return the host of a recovery, and where the stage went if that is another one."""
    if recovery.new_host == recovery.host:
        return printable(recovery.host, 28)
    return f"{printable(recovery.host, 28)} -> {printable(recovery.new_host, 28)}"


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
