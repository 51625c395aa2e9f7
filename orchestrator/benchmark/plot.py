"""The plots of a bench, as numbers that an SVG is filled with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.benchmark.figure import Figure
from orchestrator.benchmark.guess_result import GuessResult
from orchestrator.benchmark.result import BenchResult

WIDTH, HEIGHT = 1000.0, 260.0


@dataclass(frozen=True, slots=True)
class Point:
    """A median with its spread; `y` from the top."""

    x: float
    y: float
    low_y: float
    high_y: float
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line over the number of requests, with the heights of its grid."""

    points: tuple[Point, ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def path(self) -> str:
        """SVG points."""
        return " ".join(f"{point.x:g},{point.y:g}" for point in self.points)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar, in percent of its width."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class StageBar:
    """What a stage does in the time of one token."""

    stage: int
    host: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class SpeedBar:
    """A median speed with its spread, in percent of the highest that is drawn."""

    name: str
    kind: str
    width: float
    low_x: float
    high_x: float
    title: str


def throughput(result: BenchResult) -> Line:
    """Return tokens/s of all requests together; numbers of requests at even distances."""
    levels = result.levels
    highest = max(max(level.tokens_per_s.values) for level in levels)
    top, step = _round_top(highest)

    def y(value: float) -> float:
        return round(HEIGHT * (1 - value / top), 2)

    points = tuple(
        Point(
            round(WIDTH * (index + 0.5) / len(levels), 2),
            y(level.tokens_per_s.median),
            y(min(level.tokens_per_s.values)),
            y(max(level.tokens_per_s.values)),
            str(level.streams),
            f"{level.streams} at once: {level.tokens_per_s.words()} tokens/s",
        )
        for index, level in enumerate(levels)
    )
    count = round(top / step)
    return Line(points, tuple((y(step * i), f"{step * i:g}") for i in range(count + 1)))


def stage_bars(result: BenchResult) -> tuple[StageBar, ...]:
    """Return a bar for each stage, as wide as the time of one token."""
    bars = []
    for stage in result.stages:
        took = {
            "compute": stage.compute_ms.median,
            "wire": stage.wire_ms.median,
            "idle": stage.idle_ms.median,
        }
        whole_ms = max(sum(took.values()), 1e-9)
        x, parts = 0.0, []
        for kind, part_ms in took.items():
            width = 100 * part_ms / whole_ms
            parts.append(Part(kind, round(x, 3), round(width, 3), f"{kind}: {part_ms:.2f} ms"))
            x += width
        bars.append(StageBar(stage.stage, stage.host, tuple(parts)))
    return tuple(bars)


def guess_bars(guesses: GuessResult) -> tuple[SpeedBar, ...]:
    """Return two bars for each text: without guesses, and with."""
    ways: list[tuple[str, str, Figure]] = []
    for text in guesses.texts:
        ways.append((f"{text.name}, without", "wire", text.plain_tokens_per_s))
        ways.append((f"{text.name}, with", "compute", text.guessed_tokens_per_s))
    highest = max(max(figure.values) for _, _, figure in ways)

    def x(value: float) -> float:
        return round(100 * value / max(highest, 1e-9), 2)

    return tuple(
        SpeedBar(
            name,
            kind,
            x(figure.median),
            x(min(figure.values)),
            x(max(figure.values)),
            f"{name}: {figure.words()} tokens/s",
        )
        for name, kind, figure in ways
    )


def _round_top(highest: float) -> tuple[float, float]:
    """Return a round top of an axis and the step of its grid, of four or five steps."""
    least = max(highest, 1e-9) / 4
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least)
    return step * math.ceil(max(highest, 1e-9) / step), step
