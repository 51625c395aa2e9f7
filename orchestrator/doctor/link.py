"""How fast the connection to a host is, measured while it is open."""

from __future__ import annotations

import time
from dataclasses import dataclass

from orchestrator.visit.visit import Visit

_PINGS = 5
# Each transfer is four times the one before, until one takes long enough to be measured.
_SIZES_BYTES = (1 << 16, 1 << 18, 1 << 20, 1 << 22)
_ENOUGH_S = 0.25
# For one direction; a link that is too slow for the smallest transfer is bounded by it.
DIRECTION_S = 2.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes a second in one direction; `is_bound` where it is at most that."""

    bytes_per_s: float
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class Pings:
    """The quickest of some questions and answers.

    Attributes:
        round_trip_ms: how long it took.
        clock_ahead_s: how far the host's clock is ahead of ours, right to half a round trip.
    """

    round_trip_ms: float
    clock_ahead_s: float


async def measure_pings(visit: Visit, limit_s: float) -> Pings:
    """Ask for the time a few times.

    Raises:
        VisitFailed: the connection is lost.
        TimeoutError: an answer does not come within the limit.
    """
    found: list[Pings] = []
    for _ in range(_PINGS):
        begun, here_s = time.perf_counter(), time.time_ns() / 1e9
        visit.ask({"ask": "clock"})
        there_s = float((await visit.hear(limit_s))["wall_s"])
        took_s = time.perf_counter() - begun
        found.append(Pings(took_s * 1e3, there_s - here_s - took_s / 2))
    return min(found, key=lambda pings: pings.round_trip_ms)


async def measure_up(visit: Visit, round_trip_ms: float) -> Rate:
    """Send more and more bytes.

    Raises:
        VisitFailed: the connection is lost.
    """
    rate, ends_s = Rate(0.0), time.perf_counter() + DIRECTION_S
    for size in _SIZES_BYTES:
        begun = time.perf_counter()
        visit.ask({"ask": "take", "bytes": size}, bytes(size))
        try:
            await visit.hear(max(0.0, ends_s - begun))
        except TimeoutError:
            visit.cut()
            return rate if rate.bytes_per_s else Rate(size / DIRECTION_S, is_bound=True)
        took_s = time.perf_counter() - begun
        rate = _rate(size, took_s, round_trip_ms)
        if took_s > _ENOUGH_S:
            break
    return rate


async def measure_down(visit: Visit, round_trip_ms: float) -> Rate:
    """Have the host send more and more bytes.

    Raises:
        VisitFailed: the connection is lost.
    """
    rate, ends_s = Rate(0.0), time.perf_counter() + DIRECTION_S
    for size in _SIZES_BYTES:
        begun, before = time.perf_counter(), visit.bytes_received
        visit.ask({"ask": "give", "bytes": size})
        try:
            await visit.swallow_line(max(0.0, ends_s - begun))
            await visit.hear(max(0.0, ends_s - begun))
        except TimeoutError:
            visit.cut()
            came_bytes = visit.bytes_received - before
            if rate.bytes_per_s:
                return rate
            return Rate(max(1, came_bytes) / DIRECTION_S, is_bound=True)
        took_s = time.perf_counter() - begun
        rate = _rate(size, took_s, round_trip_ms)
        if took_s > _ENOUGH_S:
            break
    return rate


def _rate(size_bytes: int, took_s: float, round_trip_ms: float) -> Rate:
    # The answer takes a round trip of its own, which is no part of the transfer.
    moving_s = max(took_s - round_trip_ms / 1e3, took_s / 10)
    return Rate(size_bytes / moving_s)
