"""The ops of a run as rows of numbers, for the part of the page that can be zoomed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.bundle.html.axis import Axis, Bar
from orchestrator.bundle.spans import OpSpan
from orchestrator.bundle.words import printable, span

MOST_OPS = 20_000
DRAWN_ONE_BY_ONE = 600  # Of all stages together; more would only make the page slow.


def zoom_data(
    spans: Sequence[OpSpan], stages: Iterable[tuple[int, str]], axis: Axis
) -> dict[str, Any]:
    """Return what the page's script draws; of very many ops the first and the last.

    Times are in microseconds since the axis begins.
    """
    kept = spans
    if len(spans) > MOST_OPS:
        kept = [*spans[: MOST_OPS // 2], *spans[-MOST_OPS // 2 :]]
    names: dict[str, int] = {}
    rows: dict[int, int] = {}
    labels: list[str] = []
    for stage, host in stages:
        rows[stage] = len(labels)
        labels.append(f"stage {stage} · {printable(host, 40)}")
    return {
        "width_us": round(axis.width_ms * 1000),
        "zero_us": round((axis.begin_ms - axis.zero_ms) * 1000),
        "labels": labels,
        "stages": list(rows),
        "ops": [
            [
                rows[s.stage],
                names.setdefault(printable(s.event.op, 60), len(names)),
                round((s.start_ms - axis.begin_ms) * 1000),
                round(s.took_ms * 1000),
                s.event.seq_len or 0,
                int(s.event.ok),
            ]
            for s in kept
            if s.stage in rows
        ],
        "names": list(names),
        "left_out": len(spans) - len(kept),
    }


def script_json(values: dict[str, Any]) -> str:
    """Return JSON that can stand in a script element: nothing in it can end the element."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def op_bars(spans: Sequence[OpSpan], axis: Axis) -> dict[int, list[Bar]]:
    """Return a bar for each op by stage, where they are few enough to be seen; else nothing."""
    bars: dict[int, list[Bar]] = {}
    for s in spans if len(spans) <= DRAWN_ONE_BY_ONE else ():
        name, at = printable(s.event.op, 60), span(s.start_ms - axis.zero_ms)
        kind = "op" if s.event.ok else "op-failed"
        bar = axis.bar(s.start_ms, s.end_ms, kind, f"{name}: {span(s.took_ms)}, at {at}")
        bars.setdefault(s.stage, []).append(bar)
    return bars
