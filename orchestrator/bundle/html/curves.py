"""Values over time, one small curve for each stage: resident memory, bytes fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.bundle.html.axis import Axis
from orchestrator.bundle.processes import Process
from orchestrator.bundle.words import printable, size, span
from worker.protocol.events import (
    Device,
    DownloadProgress,
    Heartbeat,
    MemoryCheck,
    ModelLoaded,
)

_POINTS_KEPT = 400
_HEIGHT = 100.0


@dataclass(frozen=True, slots=True)
class Dot:
    """A measured value; `x` and `y` are in percent of the curve's place, y from the top."""

    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Some values of a stage.

    Attributes:
        lines: SVG points, 0 to 1000 wide and 0 to 100 high; one line for each process.
        dots: the values, where they are few.
        limit_y: where the limit lies, in percent from the top; None where none is in sight.
        summary: the same in words.
    """

    stage: int
    host: str
    lines: tuple[str, ...]
    dots: tuple[Dot, ...]
    limit_y: float | None
    summary: str


@dataclass(frozen=True, slots=True)
class _Point:
    wall_ms: float
    value: float


def memory_curves(processes: Iterable[Process], axis: Axis) -> Iterator[Curve]:
    """Yield the resident memory of each stage against what its host or its card has."""
    for own in _by_stage(processes):
        lines = [list(_resident(process)) for process in own]
        values = [point.value for line in lines for point in line]
        if not values:
            continue
        limit_bytes, limit_text = _limit(own)
        summary = f"{size(values[-1])}, at most {size(max(values))}; {limit_text}"
        yield _curve(own[-1], lines, limit_bytes, summary, axis)


def download_curves(processes: Iterable[Process], axis: Axis) -> Iterator[Curve]:
    """Yield how far each stage's download was, where it told more than its end."""
    for own in _by_stage(processes):
        told = [
            [
                (process.at_ms(seen), seen.event)
                for seen in process.seen
                if isinstance(seen.event, DownloadProgress)
            ]
            for process in own
        ]
        newest = [line[-1][1] for line in told if line]
        if not newest or max(map(len, told)) < 2:
            continue
        last = newest[-1]
        lines = [[_Point(at_ms, event.bytes_done) for at_ms, event in line] for line in told]
        summary = (
            f"{size(last.bytes_done)} of {size(last.bytes_total)} after {span(last.elapsed_ms)}, "
            f"{last.mbps:.1f} MB/s"
        )
        yield _curve(own[-1], lines, last.bytes_total, summary, axis)


def _by_stage(processes: Iterable[Process]) -> Iterator[list[Process]]:
    stages: dict[int, list[Process]] = {}
    for process in processes:
        stages.setdefault(process.stage, []).append(process)
    yield from stages.values()


def _resident(process: Process) -> Iterator[_Point]:
    for seen in process.seen:
        if isinstance(seen.event, (Heartbeat, ModelLoaded)):
            yield _Point(process.at_ms(seen), seen.event.rss_mb * 1e6)


def _limit(processes: Sequence[Process]) -> tuple[float | None, str]:
    """Return what bounds the resident memory of the newest process, and that in words."""
    seen = [moment.event for moment in processes[-1].seen]
    checks = [event for event in seen if isinstance(event, MemoryCheck)]
    devices = [event for event in seen if isinstance(event, Device)]
    total_bytes = devices[-1].total_bytes if devices and devices[-1].device == "cpu" else None
    if checks and checks[-1].device == "cpu" and checks[-1].limit != "memory":
        free_bytes = checks[-1].free_bytes
        return free_bytes, f"{size(free_bytes)} free ({printable(checks[-1].limit, 20)})"
    if total_bytes:
        return total_bytes, f"host has {size(total_bytes)}"
    return None, "limit not known"


def _curve(
    process: Process,
    lines: Sequence[Sequence[_Point]],
    limit: float | None,
    summary: str,
    axis: Axis,
) -> Curve:
    most = max((point.value for line in lines for point in line), default=0.0) or 1.0
    # A limit far above would press the curve flat; the words still tell it.
    in_sight = limit if limit is not None and limit <= 4 * most else None
    top = 1.06 * max(most, in_sight or 1.5 * most)

    def y(value: float) -> float:
        return round(_HEIGHT * (1 - value / top), 2)

    thin = [_thinned(line) for line in lines if line]
    few = sum(map(len, thin)) <= 60
    return Curve(
        process.stage,
        process.host,
        tuple(
            " ".join(f"{axis.x(point.wall_ms) * 10:g},{y(point.value):g}" for point in line)
            for line in thin
        ),
        tuple(
            Dot(axis.x(p.wall_ms), y(p.value), f"{span(p.wall_ms - axis.zero_ms)}: {size(p.value)}")
            for line in thin
            for p in line
            if few
        ),
        None if in_sight is None else y(in_sight),
        summary,
    )


def _thinned(line: Sequence[_Point]) -> Sequence[_Point]:
    """Return at most some hundred points: of each group of neighbours the highest."""
    if len(line) <= _POINTS_KEPT:
        return line
    group = -(-len(line) // _POINTS_KEPT)
    return [
        max(line[at : at + group], key=lambda point: point.value)
        for at in range(0, len(line), group)
    ]
