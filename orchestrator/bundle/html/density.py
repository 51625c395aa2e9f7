"""Thousands of stretches of time as one small SVG path, 1000 wide and 100 high."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.bundle.html.axis import Axis
from orchestrator.bundle.spans import OpSpan

BINS = 500
_HEIGHT = 100.0


def density_path(spans: Iterable[OpSpan], axis: Axis) -> str:
    """Return the share of each of 500 parts of the axis that is covered; "" for nothing.

    A part in which anything happened is at least 8 high, so that a short op can be seen.
    """
    covered = [0.0] * BINS
    scale = BINS / axis.width_ms
    until = 0.0
    for span in spans:
        begin = min(float(BINS), max(until, (span.start_ms - axis.begin_ms) * scale))
        end = min(float(BINS), max(begin, (span.end_ms - axis.begin_ms) * scale))
        is_within = begin == end and span.took_ms > 0  # It is covered already, or outside.
        until = max(until, end)
        if is_within:
            continue
        _cover(covered, begin, end)
    if not any(covered):
        return ""
    return _steps([max(8.0, _HEIGHT * min(1.0, share)) if share else 0.0 for share in covered])


def in_flight_path(stretches: Iterable[tuple[float, float]], axis: Axis) -> tuple[str, int]:
    """Return the most stretches that cover each of 500 parts of the axis at once, and the most.

    Args:
        stretches: begin and end in ms by the orchestrator's clock.
        axis: what the path lies on.
    """
    changes: list[tuple[float, int]] = []
    for begin_ms, end_ms in stretches:
        changes += [(begin_ms, 1), (end_ms, -1)]
    most_at = [0] * BINS
    count = at = 0
    # At one moment, ends come before beginnings: what only touches is not at once.
    for wall_ms, change in sorted(changes):
        place = min(BINS - 1, max(0, int((wall_ms - axis.begin_ms) * BINS / axis.width_ms)))
        for between in range(at, place + 1):
            most_at[between] = max(most_at[between], count)
        count, at = count + change, place
        most_at[place] = max(most_at[place], count)
    most = max(most_at)
    return (_steps([_HEIGHT * value / most for value in most_at]) if most else "", most)


def _cover(covered: list[float], begin: float, end: float) -> None:
    first, last = int(begin), min(BINS - 1, int(end))
    if first < last == end:
        last -= 1
    for place in range(first, last + 1):
        covered[place] += max(0.0, min(end, place + 1) - max(begin, place))
        # An op without a length still happened.
        covered[place] = covered[place] or 1e-9


def _steps(heights: Sequence[float]) -> str:
    """Return a closed path along the heights; equal neighbours are one step."""
    width = 1000 / len(heights)
    path, current = ["M0 100"], 0.0
    for place, height in enumerate(heights):
        if height != current:
            path.append(f"H{place * width:g}V{_HEIGHT - height:.1f}")
            current = height
    path.append("H1000V100Z")
    return "".join(path)
