"""What a stage answers wrongly to several at once costs no request its answer."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from orchestrator.chunk import Chunk
from orchestrator.failures import OpRejected
from orchestrator.scheduler.rows import replies_of_rows
from orchestrator.specs import StageSpec
from tests.support.history_chain import expected_tokens
from tests.support.scheduler_lab import Lab
from worker.protocol.capabilities import Capability
from worker.protocol.ops import SampledReply, Sampling, TogetherReply

PROMPTS = ("one", "two", "three", "four")


def expected() -> list[list[int]]:
    return [
        expected_tokens(prompt, num_stages=2, prefill_chunk=50, max_new_tokens=5)
        for prompt in PROMPTS
    ]


async def answers(lab: Lab) -> list[list[int]]:
    """Decode all prompts at once."""

    async def one(prompt: str) -> list[int]:
        ids = [ord(character) % 100 for character in prompt]
        chunk, new = Chunk(tuple(ids), 0), list[int]()
        while len(new) < 5:
            reply = await lab.scheduler.forward(prompt, chunk, Sampling())
            assert reply.token_id is not None
            new.append(reply.token_id)
            chunk = Chunk((new[-1],), len(ids) + len(new) - 1)
        await lab.release(prompt)
        return new

    serving = [asyncio.create_task(seat.serve()) for seat in lab.seats]
    try:
        async with asyncio.timeout(10):
            return await asyncio.gather(*(one(prompt) for prompt in PROMPTS))
    finally:
        await lab.scheduler.aclose()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


def test_a_stage_that_answers_a_group_wrongly_is_sent_no_more_of_them() -> None:
    lab = Lab(2, random.Random(1), loses=0.0, capabilities=[Capability.TOGETHER])
    notices: list[str] = []
    lab.crew.on_notice = notices.append

    async def wrongly(request: Any, timeout_s: float | None = None) -> TogetherReply:
        return TogetherReply(replies=())

    lab.seats[1].ask_once = wrongly  # type: ignore[method-assign]
    got = asyncio.run(answers(lab))
    (notice,) = notices
    assert (got, lab.seats[1].ops.count("together")) == (expected(), 0)
    assert notice == (
        "stage 1 on local answers requests that are sent together wrongly ('replies' has 0 replies "
        "to 2 requests); each is sent alone from now on"
    )


def test_a_group_that_a_stage_refuses_as_a_whole_goes_on_one_by_one() -> None:
    lab = Lab(2, random.Random(1), loses=0.0, capabilities=[Capability.TOGETHER])

    async def refused(request: Any, timeout_s: float | None = None) -> TogetherReply:
        raise OpRejected(1, "local", "together", "out_of_memory", "no memory")

    lab.seats[1].ask_once = refused  # type: ignore[method-assign]
    assert asyncio.run(answers(lab)) == expected()


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        (None, "it has chosen 0 tokens for 2 rows"),
        (({"token_id": 1},), "it has chosen 1 tokens for 2 rows"),
        (({"token_id": 1}, {"token_id": "x"}), "'token_id' must be "),
    ],
)
def test_rows_without_a_token_each_are_refused(steps: Any, wrong: str) -> None:
    with pytest.raises(OpRejected, match=wrong):
        replies_of_rows(StageSpec(stage=1, num_stages=2), "r", 2, SampledReply(steps=steps))
