"""Ops that wait for a stage or its pipe get there in the order in which they came."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.recovery.turns import Turns
from orchestrator.transport.line_writer import LineWriter
from worker.protocol.ops import Ping


def test_one_that_comes_when_there_is_room_again_does_not_pass_those_that_waited() -> None:
    written: list[str] = []

    async def run() -> None:
        writer = LineWriter()
        pipe: Any = type("Pipe", (asyncio.WriteTransport,), {"is_closing": lambda self: False})()
        writer.connection_made(pipe)

        async def send(name: str) -> None:
            if not writer.has_room:
                await writer.room()
            written.append(name)

        writer.pause_writing()
        waiting = [asyncio.create_task(send(name)) for name in ("first", "gone", "second")]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.sleep(0)
        writer.resume_writing()
        await asyncio.gather(send("late"), *waiting, return_exceptions=True)
        assert writer.has_room

    asyncio.run(run())
    assert written == ["first", "second", "late"]


def test_one_that_comes_when_an_op_alone_is_over_does_not_pass_those_that_waited() -> None:
    sent: list[str] = []

    async def run() -> None:
        turns = Turns()

        async def send(name: str) -> None:
            async with turns.taken(Ping(request_id=name), alone=False):
                sent.append(name)

        async with turns.taken(Ping(request_id="alone"), alone=True):
            waiting = [asyncio.create_task(send(name)) for name in ("first", "gone", "second")]
            await asyncio.sleep(0)
            waiting[1].cancel()
            await asyncio.sleep(0)
        await asyncio.gather(send("late"), *waiting, return_exceptions=True)
        await send("last")

    asyncio.run(run())
    assert sent == ["first", "second", "late", "last"]


def test_the_ticket_of_an_op_is_that_of_the_very_one() -> None:
    async def run() -> None:
        turns = Turns()
        same = [Ping(request_id="same"), Ping(request_id="same")]
        async with turns.taken(same[0], alone=False) as first:
            async with turns.taken(same[1], alone=False) as second:
                assert [turns.ticket_of(one) for one in same] == [first, second]
                # What is sent for the request of an op, to rebuild its cache, is under its ticket.
                assert turns.ticket_of(Ping(request_id="same")) is first
                assert turns.ticket_of(Ping(request_id="other")) is None
            assert turns.ticket_of(None) is None
        assert turns.ticket_of(same[0]) is None

    asyncio.run(run())
