"""Put the page together: one HTML text that loads nothing and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import shlex
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import jinja2

from orchestrator.bundle.html.axis import Axis
from orchestrator.bundle.html.calls import op_bars, script_json, zoom_data
from orchestrator.bundle.html.curves import download_curves, memory_curves
from orchestrator.bundle.html.needs import needs_of
from orchestrator.bundle.html.story import config_rows, moments_of, stderr_tails, verdict_of
from orchestrator.bundle.html.timeline import requests_path, rows_of
from orchestrator.bundle.lookup import last_ms
from orchestrator.bundle.mask import Masker
from orchestrator.bundle.processes import processes_of
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.report import Report, report_of
from orchestrator.bundle.show import moved
from orchestrator.bundle.show_findings import place_of
from orchestrator.bundle.spans import OpSpan, spans_of, window_of
from orchestrator.bundle.words import clock, printable, size, span

_HERE = Path(__file__).parent
_FINDINGS_SHOWN = 8
_COLOURS = 8  # Of stages, in page.css.


def page_of(bundle: Bundle) -> str:
    """Return the whole page."""
    report = report_of(bundle)
    style = style_sheet()
    script = (_HERE / "page.js").read_text("utf-8")
    return (
        _environment()
        .get_template("page.html")
        .render(
            style=style,
            script=script,
            policy=policy_of(style, script),
            report=report,
            manifest=report.manifest,
            bundle=bundle,
            verdict=verdict_of(report),
            numbers=_numbers(report),
            shown_findings=_FINDINGS_SHOWN,
            moments=moments_of(bundle),
            config=config_rows(report.manifest),
            stderr=stderr_tails(bundle),
            **_drawn(bundle, report),
        )
    )


def _drawn(bundle: Bundle, report: Report) -> dict[str, Any]:
    """Return what the drawings of the page are made of."""
    processes = processes_of(bundle)
    spans = spans_of(processes)
    by_stage: dict[int, list[OpSpan]] = {}
    for span_ in spans:
        by_stage.setdefault(span_.stage, []).append(span_)
    run = _run_axis(bundle, report)
    ready_ms = [start.ready_ms for start in report.starts if start.ready_ms is not None]
    phases = [phase for start in report.starts for phase in start.phases]
    ends_ms = [*ready_ms, *(phase.start_ms + (phase.took_ms or 0.0) for phase in phases)]
    start = Axis(run.begin_ms, run.begin_ms + max(ends_ms, default=0.0), run.zero_ms)
    first_ms, end_ms = window_of(spans) or (run.begin_ms, run.end_ms)
    margin_ms = 0.01 * (end_ms - first_ms)
    ops = Axis(first_ms - margin_ms, end_ms + margin_ms, run.zero_ms)
    stages = [(stage.stage, stage.host) for stage in report.stages]
    return {
        "run_axis": run,
        "start_axis": start,
        "ops_axis": ops,
        "rows": rows_of(bundle, run, report.starts, by_stage),
        "start_rows": rows_of(bundle, start, report.starts, {}),
        "ops_rows": rows_of(bundle, ops, (), by_stage),
        "op_bars": op_bars(spans, ops),
        "requests": requests_path(bundle, run),
        "needs": needs_of(processes),
        "memory": tuple(memory_curves(processes, run)),
        "downloads": tuple(download_curves(processes, start)),
        "zoom": script_json(zoom_data(spans, stages, ops)) if spans else "",
    }


def _run_axis(bundle: Bundle, report: Report) -> Axis:
    end_ms = max(last_ms(bundle), bundle.end.wall_ms if bundle.end else 0.0)
    begin_ms = bundle.manifest.wall_ms or end_ms - report.duration_ms
    return Axis(begin_ms, max(end_ms, begin_ms), begin_ms)


def _numbers(report: Report) -> tuple[tuple[str, str], ...]:
    """Return the few numbers that stand at the top, each with what it is."""
    numbers = [(span(report.duration_ms), "whole run")]
    numbers.append((str(len(report.stages)), "stage" if len(report.stages) == 1 else "stages"))
    ready: dict[int, float] = {}  # Of the first process of each stage that got so far.
    for start in report.starts:
        if start.ready_ms is not None:
            ready.setdefault(start.stage, start.ready_ms)
    if ready:
        numbers.append((span(max(ready.values())), "until the last stage was ready"))
    if requests := report.requests:
        first = [r.ttft_ms for r in requests if r.ttft_ms is not None]
        rates = [r.decode_tokens_per_s for r in requests if r.decode_tokens_per_s is not None]
        of_many = ", median" if len(requests) > 1 else ""
        numbers.append((str(len(requests)), "request" if len(requests) == 1 else "requests"))
        numbers.append((str(sum(r.completion_tokens for r in requests)), "new tokens"))
        if first:
            numbers.append((span(median(first)), f"to the first token{of_many}"))
        if rates:
            numbers.append((f"{median(rates):.4g}", f"tokens/s after it{of_many}"))
    if report.recoveries:
        back = sum(recovery.ok for recovery in report.recoveries)
        numbers.append((str(back), f"lost stage{'' if back == 1 else 's'} brought back"))
    return tuple(numbers)


def style_sheet() -> str:
    """Return the look that all pages share."""
    return (_HERE / "page.css").read_text("utf-8")


def policy_of(style: str, script: str) -> str:
    """Return a policy under which the browser takes this style, this script and nothing else."""
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache  # Compiling the templates takes longer than filling them; they never change.
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE, encoding="utf-8"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    masker = Masker()
    environment.filters.update(
        foreign=lambda text, limit=400: masker.text(printable(str(text), limit)),
        as_typed=shlex.join,
        span=span,
        size=lambda value: "-" if value is None else size(value),
        clock=clock,
        colour=lambda stage: f"c{stage % _COLOURS}",
        place=place_of,
        moved=moved,
    )
    return environment
