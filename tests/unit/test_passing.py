"""The ops of linked stages: none is sent that would wait for what is never handed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.links.passing import Pass, PassBroken
from worker.protocol.ops import EmbedAndForward, ForwardAndSample, ForwardRange, SampledReply

REQUESTS = (
    EmbedAndForward(request_id="r", tokens=(1,)),
    ForwardRange(request_id="r", position=0, seq_len=1, hidden_b64=b""),
    ForwardAndSample(request_id="r", position=0, seq_len=1, hidden_b64=b""),
)


class Place:
    """A seat whose pipe is full until it has room; it answers what it was sent at once."""

    def __init__(self, sent: list[Any]) -> None:
        self.room = asyncio.Event()
        self.is_serving, self.term = True, 0
        self._sent = sent

    async def ask_once(
        self, request: Any, timeout_s: float | None, on_sent: Callable[[], None]
    ) -> SampledReply:
        await self.room.wait()
        self._sent.append(request)
        on_sent()
        return SampledReply()


def passed(*full: int, drop: bool) -> list[tuple[str, int | None, int | None]]:
    """Send a pass to three stages, some with full pipes; return what they were sent meanwhile."""
    sent: list[Any] = []

    async def run() -> None:
        places: Any = [Place(sent) for _ in REQUESTS]
        for index, place in enumerate(places):
            if index not in full:
                place.room.set()
        passing = Pass(0)
        passing.send(places, REQUESTS, 7, 1.0, lambda index: None)
        for _ in range(5):
            await asyncio.sleep(0)
        if drop:
            passing.drop()
            with pytest.raises(PassBroken):
                await passing.reply(2)
        for place in places:
            place.room.set()
        if not drop:
            assert await passing.reply(2) == SampledReply()

    asyncio.run(run())
    return [
        (one.op, getattr(one, "take_link", None), getattr(one, "give_link", None)) for one in sent
    ]


WHOLE = [
    ("embed_and_forward", None, 7),
    ("forward_range", 7, 7),
    ("forward_and_sample", 7, None),
]


@pytest.mark.parametrize("full", [(), (0,), (1,), (0, 1)])
def test_a_stage_is_asked_once_the_one_before_is(full: tuple[int, ...]) -> None:
    assert passed(*full, drop=False) == WHOLE


@pytest.mark.parametrize("full", [0, 1])
def test_what_is_dropped_half_sent_leaves_no_stage_waiting(full: int) -> None:
    # Those that were sent have what they wait for.
    assert passed(full, drop=True) == WHOLE[:full]


def test_it_tells_of_each_answer_by_its_place() -> None:
    told: list[int] = []

    async def run() -> None:
        places: Any = [Place([]) for _ in REQUESTS]
        for place in places:
            place.room.set()
        passing = Pass(0)
        passing.send(places, REQUESTS, 7, 1.0, told.append)
        await passing.reply(2)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert told == [0, 1, 2]


@pytest.mark.parametrize("is_back", [False, True])
def test_an_answer_of_a_lost_stage_that_was_not_read_counts_for_nothing(is_back: bool) -> None:
    async def run() -> None:
        places: Any = [Place([]) for _ in REQUESTS]
        passing = Pass(0)
        passing.send(places, REQUESTS, 7, 1.0, lambda index: None)
        for place in places:
            place.room.set()
        assert await passing.reply(2) == SampledReply()  # so all have answered
        places[1].is_serving, places[1].term = is_back, int(is_back)
        # What the stage that comes back is sent again is what was read until then: not this.
        with pytest.raises(PassBroken) as broken:
            await passing.reply(1)
        assert broken.value.lost
        assert await passing.reply(0) == SampledReply()

    asyncio.run(run())
