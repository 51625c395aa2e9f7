"""The best contiguous split: exact, by walking all stages that could be part of it.

1. The smallest step time of the slowest stage. A bisection comes near it at little cost, and what
   is left is searched exactly.
2. Of the splits that reach it, those that use most seats.
3. Of those, the one whose fullest seat is least full: the spare layer never goes to the tightest.
4. Of those, the one that fills seats most evenly (least sum of squares).
5. Where equal seats leave a choice, the bounds of `worker.protocol.stage.split_layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from orchestrator.placement.seat import Bounds, Seat
from orchestrator.placement.track import Track

Value = TypeVar("Value", float, tuple[int, ...])

# How near the bisection comes to the smallest step time before every stage is looked at.
_NEAR = 1.02


class Stage(NamedTuple):
    """One link of a chain: a seat by its index, and its half-open range of layers."""

    seat: int
    start: int
    end: int


def split(track: Track, seats: Sequence[Seat]) -> list[Stage] | None:
    """Give every layer of the track to one seat, in their order; None where that cannot be.

    Seats for which no layer is left, or which would make the slowest stage slower, get none.
    """
    bounds = [seat.bounds(track) for seat in seats]
    if farthest(track, bounds) < track.num_layers:
        return None
    if track.num_free == 0:
        return []

    def quicker(step_ms: float) -> list[Bounds]:
        return [seat.quicker(known, step_ms) for seat, known in zip(seats, bounds, strict=True)]

    near = quicker(_near_least_ms(track, seats, quicker))

    def slowest(value: float, seat: int, start: int, end: int) -> float:
        return max(value, seats[seat].step_ms(start, end))

    least_ms, _ = _best_chain(track, near, 0.0, slowest)
    exact = quicker(least_ms)

    def fullest(value: tuple[int, ...], seat: int, start: int, end: int) -> tuple[int, ...]:
        fill = seats[seat].fill_ppm(start, end)
        return value[0] - 1, max(value[1], fill)

    (used, most), _ = _best_chain(track, exact, (0, 0), fullest)

    def uneven(value: tuple[int, ...], seat: int, start: int, end: int) -> tuple[int, ...] | None:
        fill = seats[seat].fill_ppm(start, end)
        if fill > most:
            return None
        # With equal seats, the stage with index i ends at (i + 1) * layers // stages.
        ideal = (1 - value[0]) * track.num_free // -used
        off = track.free_before[end] - ideal
        return value[0] - 1, value[1] + fill**2, value[2] + off**2

    return _best_chain(track, exact, (0, 0, 0), uneven)[1]


def farthest(track: Track, bounds: Sequence[Bounds]) -> int:
    """Return the last position to which a chain of the seats, in order, can come."""
    reached = bytearray(track.num_layers + 1)
    reached[track.start] = 1
    for seat in bounds:
        before, cover = bytes(reached), -1
        for position in range(track.num_layers):
            if before[position]:
                cover = max(cover, seat.ends[position])
                if seat.takes_last(position, track):
                    return track.num_layers
            elif position <= cover and track.stops[position]:
                reached[position] = 1
                reached[track.landings[position]] = 1
        if reached[track.num_layers]:
            return track.num_layers
    return reached.rindex(1)


def _near_least_ms(
    track: Track, seats: Sequence[Seat], quicker: Callable[[float], list[Bounds]]
) -> float:
    """Return a step time that some split reaches and that is little above the smallest."""
    low_ms = max(1e-9, min(seat.step_ms(*track.units[0]) for seat in seats))
    high_ms = low_ms
    while farthest(track, quicker(high_ms)) < track.num_layers:
        low_ms, high_ms = high_ms, 2 * high_ms
    while high_ms > _NEAR * low_ms:
        middle_ms = (low_ms * high_ms) ** 0.5
        if farthest(track, quicker(middle_ms)) < track.num_layers:
            low_ms = middle_ms
        else:
            high_ms = middle_ms
    return high_ms


def _best_chain(
    track: Track,
    bounds: Sequence[Bounds],
    begin: Value,
    grow: Callable[[Value, int, int, int], Value | None],
) -> tuple[Value, list[Stage]]:
    """Return the least value of a chain over the whole track, and the chain.

    `grow` says what a value becomes with one more stage (seat, start, end), None where that stage
    is no part of it; of two values at one position the larger must never become the smaller.
    Where two are equal the chain that leaves the later seat out is kept.
    """
    states: dict[int, tuple[Value, _Link | None]] = {track.start: (begin, None)}
    for seat, seat_bounds in enumerate(bounds):
        following = dict(states)
        for start, (value, link) in states.items():
            if start == track.num_layers:
                continue
            for end in seat_bounds.ends_of(start, track):
                grown = grow(value, seat, start, end)
                landing = track.landings[end]
                if grown is not None and (
                    landing not in following or grown < following[landing][0]
                ):
                    following[landing] = grown, _Link(link, Stage(seat, start, end))
        states = following
    value, link = states[track.num_layers]
    stages = []
    while link is not None:
        stages.append(link.stage)
        link = link.before
    return value, stages[::-1]


class _Link(NamedTuple):
    before: _Link | None
    stage: Stage
