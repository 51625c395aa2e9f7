"""Op events are held for a moment: none is lost, their order stays, garbage among them is told."""

from __future__ import annotations

import asyncio

from orchestrator.stage.op_events import OpEvents
from worker.protocol.codec import OP_EVENT_HEAD, encode_event
from worker.protocol.events import Envelope, Op

MOST_HELD = 16


def line(number: int) -> bytes:
    """Return what a worker tells of one op."""
    event = Op(
        op="decode_step",
        rid="r",
        duration_ms=float(number),
        idle_ms_before=0.0,
        ok=True,
        in_bytes=1,
        out_bytes=1,
    )
    return encode_event(event, Envelope(stage=0, wall_ms=1.0, uptime_ms=1.0))


class Kept:
    """What was handed on."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.walls_ms: list[float] = []
        self.garbage: list[bytes] = []
        self.came = asyncio.Event()

    def keep(self, line: bytes, wall_ms: float) -> None:
        """Take a line."""
        self.lines.append(line)
        self.walls_ms.append(wall_ms)
        self.came.set()

    def events(self) -> OpEvents:
        """Return what hands on to this."""
        return OpEvents(self.keep, self.garbage.append)


def test_what_is_held_is_handed_on_by_itself_in_a_moment() -> None:
    async def held() -> tuple[list[bytes], list[bytes]]:
        kept = Kept()
        kept.events().hold(line(0))
        before = list(kept.lines)
        async with asyncio.timeout(10):
            await kept.came.wait()
        return before, kept.lines

    assert asyncio.run(held()) == ([], [line(0)])


def test_many_are_handed_on_at_once_in_order_each_with_its_own_time() -> None:
    lines = [line(number) for number in range(MOST_HELD + 3)]
    kept = Kept()

    async def held() -> list[bytes]:
        events = kept.events()
        for one in lines:
            events.hold(one)
        some = list(kept.lines)
        events.close()
        return some

    some = asyncio.run(held())
    assert (some, kept.lines, kept.walls_ms) == (lines[:MOST_HELD], lines, sorted(kept.walls_ms))


def test_the_first_that_is_garbage_is_told_and_those_before_it_are_kept() -> None:
    garbled = OP_EVENT_HEAD + b'"op":"decode_a library says: hello\n'
    kept = Kept()

    async def held() -> None:
        events = kept.events()
        for one in (line(0), garbled, line(1)):
            events.hold(one)
        events.close()

    asyncio.run(held())
    assert (kept.lines, kept.garbage) == ([line(0)], [garbled])
