"""The desk: places are never more than there are, and nobody is kept from them by another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.serve.desk import Busy, Desk, Draining


class Guests:
    """Clients at a desk whose answers end when the test says so."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.served: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def come(self, *names: str) -> None:
        """Have answers asked for, in this order; a name begins with that of its client."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._stay(name))
            await settled()

    async def end(self, name: str) -> None:
        """End an answer."""
        self._ends[name].set()
        await settled()

    async def leave(self) -> None:
        """Have everybody go away."""
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def _stay(self, name: str) -> None:
        async with self.desk.place(name[0]):
            self.served.append(name)
            await self._ends[name].wait()


async def settled() -> None:
    """Let everything happen that can without an end."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_one_client_is_served_in_the_order_in_which_it_asked() -> None:
    async def work() -> None:
        guests = Guests(Desk(places=1, queue=9))
        await guests.come("a1", "a2", "a3")
        for name in ("a1", "a2"):
            await guests.end(name)
        assert guests.served == ["a1", "a2", "a3"]
        await guests.leave()

    run(work())


def test_a_client_with_many_requests_takes_turns_with_another() -> None:
    async def work() -> None:
        guests = Guests(Desk(places=1, queue=9))
        await guests.come("a1", "a2", "a3", "a4", "b1", "b2")
        for name in ("a1", "a2", "b1", "a3"):
            await guests.end(name)
        assert guests.served == ["a1", "a2", "b1", "a3", "b2"]
        await guests.leave()

    run(work())


def test_a_free_place_goes_to_the_client_with_the_fewest() -> None:
    async def work() -> None:
        guests = Guests(Desk(places=3, queue=9))
        await guests.come("a1", "a2", "b1", "a3", "b2", "c1")
        await guests.end("a1")
        await guests.end("b1")
        assert guests.served == ["a1", "a2", "b1", "c1", "b2"]
        await guests.leave()

    run(work())


def test_a_full_queue_sends_away_at_once_and_says_when_to_come_back() -> None:
    async def work() -> None:
        guests = Guests(Desk(places=1, queue=1))
        await guests.come("a1", "b1")
        with pytest.raises(Busy) as caught:
            async with guests.desk.place("c"):
                pass
        assert str(caught.value) == (
            "all places are taken, and so is the queue of 1; try again in 2 s"
        )
        await guests.leave()

    run(work())


def test_draining_ends_those_who_wait_and_not_those_who_are_served() -> None:
    async def work() -> None:
        guests = Guests(Desk(places=1, queue=9))
        await guests.come("a1", "b1")
        guests.desk.drain()
        await settled()
        with pytest.raises(Draining):
            await guests.tasks["b1"]
        with pytest.raises(Draining):
            async with guests.desk.place("c"):
                pass
        waiting = asyncio.create_task(guests.desk.idle())
        await settled()
        seen = [guests.desk.running, waiting.done()]
        await guests.end("a1")
        await waiting
        assert [*seen, guests.desk.running] == [1, False, 0]

    run(work())


@given(st.lists(st.tuples(st.sampled_from("+-x"), st.integers(0, 5)), max_size=60))
def test_whatever_comes_ends_and_vanishes_no_place_is_lost(moves: list[tuple[str, int]]) -> None:
    async def work() -> None:
        guests, most = Guests(Desk(places=2, queue=3)), 0
        for number, (move, which) in enumerate(moves):
            alive = [name for name, task in guests.tasks.items() if not task.done()]
            if move == "+" or not alive:
                await guests.come(f"{'abc'[which % 3]}{number}")
            elif move == "-":
                await guests.end(alive[which % len(alive)])
            else:
                guests.tasks[alive[which % len(alive)]].cancel()
            most = max(most, guests.desk.running)
        await settled()
        alive = [task for task in guests.tasks.values() if not task.done()]
        desk = guests.desk
        assert (desk.running + desk.queued, desk.running) == (len(alive), min(2, len(alive)))
        await guests.leave()
        assert (desk.running, desk.queued, most <= 2) == (0, 0, True)

    run(work())


def test_a_place_given_in_the_moment_its_owner_goes_away_goes_on_to_the_next() -> None:
    async def work() -> None:
        guests = Guests(Desk(places=1, queue=9))
        await guests.come("a1", "b1", "c1")
        guests._ends["a1"].set()
        await asyncio.sleep(0)  # a1 ends, and b1 is given its place
        guests.tasks["b1"].cancel()
        await settled()
        with contextlib.suppress(asyncio.CancelledError):
            await guests.tasks["b1"]
        assert guests.served[-1] == "c1"
        await guests.leave()

    run(work())
