"""What the doctor found, for people: ticks, figures, and one line for each thing to mend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orchestrator.bundle.screen import Screen, Table
from orchestrator.bundle.words import printable, span
from orchestrator.doctor.judge_machine import rate_words
from orchestrator.doctor.link import Rate
from orchestrator.doctor.result import HostReport, Result, Status
from orchestrator.placement.amounts import room_words
from orchestrator.visit.check import Check

_SIGNS = {
    Status.OK: "✓",
    Status.WARNING: "!",
    Status.FAILED: "✗",
    Status.NOT_REACHED: "-",
    Status.NOT_APPLICABLE: "",
}
# For a terminal that can print nothing else.
_PLAIN = {"✓": "ok", "✗": "X"}
_GAP_CHARS = 2
_HEADINGS = (
    "host",
    "python",
    "torch",
    "transformers",
    "device",
    ">memory free",
    ">disk free",
    ">clock",
    ">round trip",
    ">up",
    ">down",
)


def show_reports(
    reports: Sequence[HostReport], screen: Screen, *, with_model: bool, can_tick: bool
) -> None:
    """Print everything that was found."""
    checks = [check for check in Check if with_model or check is not Check.MODEL]
    rows = tuple(
        (_host(report, reports), *(_sign(report.result(check), can_tick) for check in checks))
        for report in reports
    )
    _show_table(Table(("host", *checks), rows), screen)
    told = tuple(_figures(report, reports) for report in reports if "machine" in report.facts)
    if told:
        screen.line("")
        _show_table(Table(_HEADINGS, told), screen)
    complaints = [(report, *found) for report in reports for found in report.complaints()]
    screen.line("")
    if not complaints:
        screen.line("nothing to mend")
    for report, check, result in complaints:
        style = "red" if result.status is Status.FAILED else "yellow"
        needed = f"; needed: {result.needed}" if result.needed else ""
        what = printable(f"{report.label} ({check}) {result.seen}{needed}", 1000)
        screen.line(f"{_sign(result, can_tick)} {what}", style)
        if result.mend:
            # On a line of its own, to be copied.
            screen.whole(f"    {printable(result.mend, 1000)}")


def _show_table(table: Table, screen: Screen) -> None:
    """Print a table; columns for which a line has no room go into tables below, with the hosts."""
    for part in parts_of(table, screen.width):
        screen.table(part)


def parts_of(table: Table, width: int | None) -> Iterator[Table]:
    """Yield tables of at most `width` characters, each with the first column; nothing is cut."""
    lines = (tuple(title.lstrip(">") for title in table.headings), *table.rows)
    widths = [max(map(len, column)) + _GAP_CHARS for column in zip(*lines, strict=True)]
    parts: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        taken = sum(widths[one] for one in (*parts[-1], column))
        if width is not None and taken > width and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(column)
    for part in parts:
        rows = tuple(tuple(row[column] for column in part) for row in table.rows)
        yield Table(tuple(table.headings[column] for column in part), rows)


def _host(report: HostReport, reports: Sequence[HostReport]) -> str:
    label = printable(report.label, 40)
    if sum(other.label == report.label for other in reports) > 1:
        # Two lines of one host differ in their python= or env.
        label = f"{label} (line {report.name.rpartition(':')[2]})"
    return f"{label} (spare)" if report.is_spare else label


def _sign(result: Result, can_tick: bool) -> str:
    sign = _SIGNS[result.status]
    return sign if can_tick else _PLAIN.get(sign, sign)


def _figures(report: HostReport, reports: Sequence[HostReport]) -> tuple[str, ...]:
    facts = report.facts
    packages = facts.get("packages", {})
    link = facts.get("link", {})
    machine = facts["machine"]
    gpus = machine["gpus"]
    device = str(gpus[0]["name"]) if gpus else f"{machine['cores']} cores"
    more = f" x {len(gpus)}" if len(gpus) > 1 else ""
    free_bytes = sum(gpu["free_bytes"] for gpu in gpus) if gpus else machine["free_bytes"]
    disk = facts.get("disk")
    return (
        _host(report, reports),
        facts["python"]["version"],
        packages.get("torch") or "-",
        packages.get("transformers") or "-",
        printable(device, 30) + more,
        room_words(free_bytes),
        room_words(disk["free_bytes"]) if disk else "-",
        _figure(link.get("clock_ahead_s"), lambda value: f"{round(value, 1) + 0.0:+.1f} s"),
        _figure(link.get("round_trip_ms"), span),
        _figure(link.get("up_bytes_per_s"), _rate),
        _figure(link.get("down_bytes_per_s"), _rate),
    )


def _figure(value: Any, words: Callable[[Any], str]) -> str:
    return "-" if value is None else words(value)


def _rate(bytes_per_s: float) -> str:
    return rate_words(Rate(bytes_per_s))
