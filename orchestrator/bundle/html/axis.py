"""A stretch of time across the page, in percent of its width."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.bundle.words import span

_STEPS = (1, 2, 5, 10)
_STEPS_S = (60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on the axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of the axis; `x` and `width` are in percent."""

    x: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that is marked; `kind` is failure, lost, back or note."""

    x: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Axis:
    """From `begin_ms` to `end_ms` by the orchestrator's clock; labels count from `zero_ms`."""

    begin_ms: float
    end_ms: float
    zero_ms: float

    @property
    def width_ms(self) -> float:
        """Never 0."""
        return max(self.end_ms - self.begin_ms, 1e-3)

    def x(self, wall_ms: float) -> float:
        """Return where a moment lies, in percent; what lies outside is put at the edge."""
        share = (wall_ms - self.begin_ms) / self.width_ms
        return round(100 * min(1.0, max(0.0, share)), 3)

    def bar(self, start_ms: float, end_ms: float, kind: str, title: str) -> Bar:
        """Return a stretch."""
        x = self.x(start_ms)
        return Bar(x, round(max(0.0, self.x(end_ms) - x), 3), kind, title)

    def ticks(self, most: int = 6) -> tuple[Tick, ...]:
        """Return places at round times since `zero_ms`."""
        step_ms = _step_ms(self.width_ms / most)
        first = math.ceil((self.begin_ms - self.zero_ms) / step_ms)
        last = math.floor((self.end_ms - self.zero_ms) / step_ms)
        return tuple(
            Tick(self.x(self.zero_ms + number * step_ms), _label(number * step_ms))
            for number in range(first, min(last, first + 2 * most) + 1)
        )


def _step_ms(least_ms: float) -> float:
    """Return the next round step that is no smaller."""
    if least_ms > 30_000:
        for step_s in _STEPS_S:
            if step_s * 1000 >= least_ms:
                return step_s * 1000.0
        return math.ceil(least_ms / 86_400_000) * 86_400_000.0
    power = 10.0 ** math.floor(math.log10(max(least_ms, 1e-3)))
    return next(step * power for step in _STEPS if step * power >= least_ms * 0.999999)


def _label(at_ms: float) -> str:
    if at_ms == 0:
        return "0"
    if at_ms >= 60_000:
        minutes, seconds = divmod(round(at_ms / 1000), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02} min"
    return f"{at_ms / 1000:g} s" if at_ms >= 1000 else span(at_ms)
