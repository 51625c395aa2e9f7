"""The timeline of a page: of each stage its starts, how busy it was, and what befell it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.bundle.html.axis import Axis, Bar, Mark
from orchestrator.bundle.html.density import density_path, in_flight_path
from orchestrator.bundle.lookup import stages_of
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.spans import OpSpan
from orchestrator.bundle.startup import Start
from orchestrator.bundle.words import printable, span

_KINDS = {
    "start the process": "process",
    "fetch": "fetch",
    "find in cache": "fetch",
    "load": "load",
    "load (failed)": "failed",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One stage on the timeline.

    Attributes:
        bars: phases of its starts.
        ready: stretches in which it served.
        busy: an SVG path, 0 to 1000 wide and 0 to 100 high: the share of time it computed.
        marks: failures, ends and recoveries.
        summary: the same in words.
    """

    stage: int
    host: str
    bars: tuple[Bar, ...]
    ready: tuple[Bar, ...]
    busy: str
    marks: tuple[Mark, ...]
    summary: str


def rows_of(
    bundle: Bundle,
    axis: Axis,
    starts: Iterable[Start],
    spans: Mapping[int, Sequence[OpSpan]],
) -> tuple[Row, ...]:
    """Return the row of every stage."""
    by_stage: dict[int, list[Start]] = {}
    for start in starts:
        by_stage.setdefault(start.stage, []).append(start)
    rows = []
    for stage, host in stages_of(bundle).items():
        own = by_stage.get(stage, [])
        marks = tuple(sorted(_marks(bundle, stage, axis), key=lambda mark: mark.x))
        rows.append(
            Row(
                stage,
                printable(host, 60),
                tuple(bar for start in own for bar in _bars(start, axis)),
                tuple(_ready(bundle, stage, own, axis)),
                density_path(spans.get(stage, ()), axis),
                marks,
                "; ".join(_words(own, marks)),
            )
        )
    return tuple(rows)


def requests_path(bundle: Bundle, axis: Axis) -> tuple[str, int]:
    """Return how many requests were under way, as an SVG path, and the most at once."""
    stretches = [(k.value.wall_ms, k.value.wall_ms + k.value.duration_ms) for k in bundle.requests]
    return in_flight_path(stretches, axis)


def _bars(start: Start, axis: Axis) -> Iterator[Bar]:
    for phase in start.phases:
        begin_ms = axis.zero_ms + phase.start_ms
        kind = _KINDS.get(phase.name, "import")
        end_ms = axis.end_ms if phase.took_ms is None else begin_ms + phase.took_ms
        took = "no end was seen" if phase.took_ms is None else span(phase.took_ms)
        kind = "endless" if phase.took_ms is None else kind
        at = span(max(0.0, phase.start_ms))
        yield axis.bar(begin_ms, end_ms, kind, f"{printable(phase.name, 60)}: {took}, from {at}")


def _ready(bundle: Bundle, stage: int, starts: list[Start], axis: Axis) -> Iterator[Bar]:
    """Yield from when each process served until it ended, or was lost, or the next one began."""
    ends_ms = [k.value.wall_ms for k in bundle.exits if k.value.stage == stage]
    ends_ms += [k.value.wall_ms for k in bundle.failures if k.value.stage == stage]
    ends_ms += [axis.zero_ms + start.hello_ms for start in starts]
    for start in starts:
        if start.ready_ms is not None:
            ready_ms = axis.zero_ms + start.ready_ms
            until_ms = min((end for end in ends_ms if end > ready_ms), default=axis.end_ms)
            yield axis.bar(ready_ms, until_ms, "ready", f"ready after {span(start.ready_ms)}")


def _marks(bundle: Bundle, stage: int, axis: Axis) -> Iterator[Mark]:
    failures = [kept.value for kept in bundle.failures if kept.value.stage == stage]
    for failure in failures:
        at = span(failure.wall_ms - axis.zero_ms)
        yield Mark(axis.x(failure.wall_ms), "lost", f"{at}: {printable(failure.sentence)}")
    for end in (kept.value for kept in bundle.exits if kept.value.stage == stage):
        # The end that a failure tells of needs no mark of its own.
        is_told = any(abs(end.wall_ms - failure.wall_ms) < 1000 for failure in failures)
        if not end.expected and not is_told:
            at = span(end.wall_ms - axis.zero_ms)
            yield Mark(axis.x(end.wall_ms), "ended", f"{at}: {printable(end.sentence)}")
    for recovery in (kept.value for kept in bundle.recoveries if kept.value.stage == stage):
        took_ms = (recovery.restart_ms or 0.0) + (recovery.replay_ms or 0.0)
        back_ms = recovery.wall_ms + took_ms
        at = span(back_ms - axis.zero_ms)
        place = f" on {printable(recovery.new_host, 60)}"
        if recovery.ok:
            yield Mark(axis.x(back_ms), "back", f"{at}: serves again{place}, {span(took_ms)} later")
        else:
            why = printable(recovery.error or "no reason given")
            yield Mark(
                axis.x(back_ms), "lost", f"{at}: try {recovery.attempt}{place} failed: {why}"
            )


def _words(starts: list[Start], marks: tuple[Mark, ...]) -> Iterator[str]:
    for start in starts:
        if start.ready_ms is None:
            yield "never ready"
        else:
            yield f"ready after {span(start.ready_ms)}"
    yield from (mark.title for mark in marks)
