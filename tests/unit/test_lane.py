"""Turns of a stage: decode first, in order, within the window, and a chunk not for ever later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from orchestrator.scheduler.lane import Lane, Queue
from orchestrator.scheduler.pace import Pace
from worker.protocol.events import Op
from worker.protocol.ops import DecodeStep, EmbedAndForward


class Turns:
    """A lane, and in what order its turns were given."""

    def __init__(
        self, *, window: int = 1, patience: int = 99, comes_s: float | None = None
    ) -> None:
        pace = Pace()
        pace.step_window, pace.chunk_s = window, 0.02
        self.comes_s = comes_s
        self.given: list[str] = []
        self.lane = Lane(pace, Queue(), patience=lambda: patience, comes=lambda: self.comes_s)
        self._numbers = iter(range(100))

    def ask(self, name: str) -> asyncio.Task[None]:
        """Ask for a turn: of a chunk where the name begins so, else of a step."""
        number = next(self._numbers)

        async def asking() -> None:
            await (self.lane.chunk_turn if name[0] == "c" else self.lane.step_turn)(number)
            self.given.append(name)

        return asyncio.create_task(asking())

    async def leave(self, name: str) -> None:
        """Give a turn back, and let the next go."""
        self.lane.leave(is_step=name[0] != "c")
        await settled()

    async def give_all(self) -> list[str]:
        """Give turns back one by one until nobody waits; return who had one, in order."""
        await settled()
        for i in range(100):
            if i == len(self.given):
                break
            await self.leave(self.given[i])
        assert (self.lane.steps_out, self.lane.chunks_out, self.lane.steps_here) == (0, 0, 0)
        return self.given


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def on_loop(act: Callable[[], Awaitable[list[str]]]) -> list[str]:
    async def run() -> list[str]:
        async with asyncio.timeout(10):
            return await act()

    return asyncio.run(run())


def test_a_step_goes_before_a_chunk_that_came_earlier() -> None:
    async def act() -> list[str]:
        turns = Turns()
        for name in ("s0", "c1", "c2", "s3", "s4"):
            turns.ask(name)
        return await turns.give_all()

    assert on_loop(act) == ["s0", "s3", "s4", "c1", "c2"]


def test_a_chunk_waits_for_no_more_ops_of_steps_than_patience() -> None:
    async def act() -> list[str]:
        turns = Turns(patience=2)
        for name in ("s0", "c1", "s2", "s3", "s4", "s5"):
            turns.ask(name)
        return await turns.give_all()

    assert on_loop(act) == ["s0", "s2", "s3", "c1", "s4", "s5"]


def test_no_more_ops_than_the_window_are_under_way() -> None:
    async def act() -> list[str]:
        turns = Turns(window=3)
        for name in ("s0", "s1", "s2", "s3", "s4"):
            turns.ask(name)
        await settled()
        before = list(turns.given)
        await turns.leave("s0")
        return [*before, "|", *turns.given[len(before) :]]

    assert on_loop(act) == ["s0", "s1", "s2", "|", "s3"]


@pytest.mark.parametrize("gone", ["s1", "c2"])
def test_one_that_is_cancelled_while_it_waits_keeps_no_turn(gone: str) -> None:
    async def act() -> list[str]:
        turns = Turns()
        tasks = {name: turns.ask(name) for name in ("s0", "s1", "c2", "s3")}
        await settled()
        tasks[gone].cancel()
        return await turns.give_all()

    assert on_loop(act) == [name for name in ("s0", "s1", "s3", "c2") if name != gone]


def test_one_that_is_cancelled_in_the_moment_of_its_turn_gives_it_on() -> None:
    async def act() -> list[str]:
        turns = Turns()
        tasks = [turns.ask(name) for name in ("s0", "s1", "s2")]
        await settled()
        turns.lane.leave(is_step=True)  # s1 has the turn from here on, and does not know yet.
        tasks[1].cancel()
        await settled()
        return turns.given

    assert on_loop(act) == ["s0", "s2"]


def test_a_stage_stands_idle_for_a_step_that_comes_soon_but_not_for_ever() -> None:
    async def act() -> list[str]:
        turns = Turns(comes_s=0.001)
        chunk = turns.ask("c0")
        await settled()
        idle = turns.lane.keeps_free
        turns.ask("s1")
        await settled()
        await turns.leave("s1")
        await chunk  # No step comes any more, though it was said.
        return [str(idle), *turns.given]

    assert on_loop(act) == ["True", "s1", "c0"]


def test_a_stage_that_stands_idle_sees_soon_that_no_step_comes_after_all() -> None:
    async def act() -> list[str]:
        turns = Turns(comes_s=0.001)
        turns.lane.pace.chunk_s = 1000.0
        chunk = turns.ask("c0")
        await settled()
        idle = turns.lane.keeps_free
        turns.comes_s = None  # as of a request that was thought to go on; nobody says that it ended
        await chunk
        return [str(idle), str(turns.lane.keeps_free), *turns.given]

    assert on_loop(act) == ["True", "False", "c0"]


def test_a_stage_stands_idle_for_nobody_when_the_chunk_is_cancelled() -> None:
    async def act() -> list[str]:
        turns = Turns(comes_s=0.001)
        turns.lane.pace.chunk_s = 1000.0
        chunk = turns.ask("c0")
        await settled()
        chunk.cancel()
        await settled()
        idle = turns.lane.keeps_free
        turns.comes_s = None
        await turns.ask("c1")
        return [str(idle), *turns.given]

    assert on_loop(act) == ["False", "c1"]


def told(op: str, duration_ms: float, *, idle_ms: float, first: bool = False) -> Op:
    return Op(
        op=op,
        rid="r",
        duration_ms=duration_ms,
        idle_ms_before=idle_ms,
        first_call=first,
        ok=True,
        in_bytes=1,
        out_bytes=1,
    )


@pytest.mark.parametrize(
    ("link_s", "step_ms", "chunk_ms", "windows"),
    [
        (0.0001, 10, 200, (1, 1)),  # a pipe
        (0.010, 10, 200, (2, 1)),
        (0.050, 10, 200, (6, 2)),
        (0.0505, 10, 1000, (6, 1)),
        (0.0005, 0.1, 1, (1, 1)),  # what is not the worker's is this program's
    ],
)
def test_the_window_is_one_and_what_the_link_takes_in_ops(
    link_s: float,
    step_ms: float,
    chunk_ms: float,
    windows: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    pace, chunk = Pace(), EmbedAndForward(request_id="r", tokens=(1, 2))
    pace.sent(DecodeStep(request_id="r", token_id=1, position=1), is_step=True)
    now_s += 9.0  # The first op of its kind tells nothing.
    pace.heard(told("decode_step", 8000, idle_ms=5, first=True))
    for _ in range(3):
        pace.sent(DecodeStep(request_id="r", token_id=1, position=1), is_step=True)
        now_s += link_s + step_ms / 1e3
        pace.heard(told("decode_step", step_ms, idle_ms=5))
        pace.sent(chunk, is_step=False)
        now_s += 3.0  # It has stood in the worker's pipe.
        pace.heard(told("embed_and_forward", chunk_ms, idle_ms=0))
        pace.heard(told("tokenize", 7, idle_ms=5))
    assert (pace.step_window, pace.chunk_window) == windows
