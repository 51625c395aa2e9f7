"""Stages that hand hidden states straight on: the same answer, whatever becomes of the links."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from orchestrator.bundle.records import OpRecord
from orchestrator.links.names import CHAIN
from orchestrator.specs import StageSpec
from orchestrator.stages import Stages
from tests.support.recovery_lab import QUICK, Ask, Watch, answers, history_spec, inflict
from tests.support.stages import PATIENT, MemoryRecorder, stub_specs
from worker.links import Links
from worker.protocol.ops import Listen, SampledReply, Sampling

pytestmark = pytest.mark.skipif(not Links().capabilities, reason="openssl is not here")

T = TypeVar("T")
ASKED = Ask(1, sampled=True)
MOST_BARE_BYTES = {
    **dict.fromkeys(("embed_and_forward", "decode_step", "forward_range"), 80),
    "together": 400,
}


def run_chain(
    specs: list[StageSpec],
    act: Callable[[Stages, Watch], Awaitable[T]],
    notices: list[str] | None = None,
) -> T:
    async def run() -> T:
        watch = Watch()
        async with await Stages.start(
            specs,
            recorder=watch,
            policy=QUICK,
            timeouts=PATIENT,
            links=CHAIN,
            on_notice=[].append if notices is None else notices.append,
        ) as pipeline:
            return await act(pipeline, watch)

    return asyncio.run(run())


def history_specs(num_stages: int = 3) -> list[StageSpec]:
    return [history_spec(i, num_stages, host=f"host-{i}") for i in range(num_stages)]


async def relinked(pipeline: Stages) -> bool:
    """Ask until every link is live: what needs a link has it made again."""
    async with asyncio.timeout(20):
        while not all(pipeline.links_live):
            await pipeline.forward("again", (1,), 0, None)
    return True


def came_by(recorder: MemoryRecorder) -> bool:
    """Whether replies brought hidden states to the orchestrator: none without is that long."""
    return any(
        op.received_bytes > MOST_BARE_BYTES[op.op]
        for op in recorder.ops
        if op.op in MOST_BARE_BYTES
    )


async def steps(pipeline: Stages, count: int) -> list[list[SampledReply]]:
    """Run a prompt and some decode steps of each of so many requests, at once."""
    rids = [f"r{i}" for i in range(count)]
    # All prompts first: else a short answer may be over before the next prompt has its turn.
    first = await asyncio.gather(*(pipeline.forward(rid, (1, 2, 3), 0, Sampling()) for rid in rids))

    async def rest(rid: str) -> list[SampledReply]:
        return [await pipeline.forward(rid, (at,), at, Sampling()) for at in range(3, 9)]

    return [
        [one, *more]
        for one, more in zip(first, await asyncio.gather(*map(rest, rids)), strict=True)
    ]


@pytest.mark.parametrize("count", [1, 12])
def test_no_hidden_state_comes_by_and_the_tokens_are_those_of_a_star(count: int) -> None:
    async def ask(pipeline: Stages, watch: Watch) -> tuple[object, ...]:
        for pace in pipeline._scheduler._route.paces:
            # To stages that work for no time a busy machine is a long link, and all go alone.
            pace.heard = lambda op: None  # type: ignore[method-assign]
        got = await steps(pipeline, count)
        return got, "together" in {op.op for op in watch.ops}, came_by(watch)

    async def star() -> tuple[object, ...]:
        watch = Watch()
        async with await Stages.start(stub_specs(4), recorder=watch, timeouts=PATIENT) as pipeline:
            return await ask(pipeline, watch)

    got, is_together, comes_by = asyncio.run(star())
    assert comes_by
    assert run_chain(stub_specs(4), ask) == (got, is_together, False)
    assert is_together == (count > 1)


@pytest.mark.parametrize("count", [1, 6])
def test_the_pace_of_every_stage_is_learnt(count: int) -> None:
    async def ask(pipeline: Stages, watch: Watch) -> list[bool]:
        await steps(pipeline, count)
        return [pace.step_s > 0 for pace in pipeline._scheduler._route.paces]

    assert run_chain(stub_specs(4), ask) == [True] * 4


def test_an_answer_over_links_is_the_answer() -> None:
    async def act(pipeline: Stages, watch: Watch) -> tuple[object, ...]:
        got = await answers(pipeline, watch, ASKED.requests())
        return got, pipeline.links_live, came_by(watch)

    assert run_chain(history_specs(), act) == (ASKED.expected(3), (True, True), False)


@pytest.mark.parametrize(("stage", "count"), [(0, 1), (1, 1), (2, 1), (1, 9)])
def test_a_lost_stage_comes_back_and_is_linked_again(stage: int, count: int) -> None:
    asked = Ask(count)

    async def act(pipeline: Stages, watch: Watch) -> tuple[object, ...]:
        def on_token(rid: str, count: int) -> None:
            if (rid, count) == ("r0", 5):
                inflict("kill", watch.pids[stage])

        got = await answers(pipeline, watch, asked.requests(), on_token=on_token)
        back = [one.stage for one in watch.recoveries if one.ok]
        again = await relinked(pipeline), await answers(pipeline, watch, ASKED.requests())
        return got, back, again

    assert run_chain(history_specs(), act) == (
        asked.expected(3),
        [stage],
        (True, ASKED.expected(3)),
    )


@pytest.mark.parametrize("count", [1, 5])
def test_a_lost_link_is_gone_round_and_made_again(count: int) -> None:
    async def act(pipeline: Stages, watch: Watch) -> tuple[object, ...]:
        cutting: list[asyncio.Task[object]] = []

        def on_token(rid: str, at: int) -> None:
            if (rid, at) == ("r0", count):
                # It listens for another one, which does not come, and so ends the link it has.
                cut = Listen(request_id="cut", address="127.0.0.1", token=secrets.token_hex(32))
                cutting.append(asyncio.create_task(pipeline.stages[1].call(cut)))

        got = await answers(pipeline, watch, ASKED.requests(), on_token=on_token)
        await asyncio.gather(*cutting)
        was_lost = "link_lost" in {op.code for op in watch.ops}
        return got, len(watch.recoveries), was_lost, await relinked(pipeline)

    assert run_chain(history_specs(), act) == (ASKED.expected(3), 0, True, True)


@pytest.mark.parametrize("count", [3, 12])
def test_links_that_are_lost_all_the_time_leave_the_answers_as_they_are(count: int) -> None:
    asked, cuts = Ask(count), list[asyncio.Task[object]]()

    async def act(pipeline: Stages, watch: Watch) -> tuple[object, ...]:
        def on_op(record: OpRecord) -> None:
            if record.op in ("forward_range", "together") and len(watch.ops) % 5 == 0:
                name, token = f"cut-{len(cuts)}", secrets.token_hex(32)
                cut = Listen(request_id=name, address="127.0.0.1", token=token)
                place = pipeline.stages[1 + len(cuts) % 3]
                cuts.append(asyncio.create_task(place.call(cut)))

        watch.on_op = on_op  # from the first chunk of the prompts on
        got = await answers(pipeline, watch, asked.requests())
        watch.on_op = lambda record: None
        await asyncio.gather(*cuts)
        return got, len(watch.recoveries)

    assert run_chain(history_specs(4), act) == (asked.expected(4), 0)
    assert len(cuts) > 2


def test_without_the_means_for_a_link_it_goes_by_way_of_the_orchestrator() -> None:
    specs, notices = stub_specs(3), list[str]()
    specs[2] = replace(specs[2], environment={"PATH": "/nonexistent"})

    async def act(pipeline: Stages, watch: Watch) -> tuple[object, bool]:
        reply = await pipeline.forward("r", (1, 2, 3), 0, Sampling())
        return pipeline.links_live, reply.token_id is not None

    assert run_chain(specs, act, notices) == ((False, False), True)
    (notice,) = notices
    assert notice == (
        "stage 2 on local cannot be linked (it needs the program openssl, and a model whose state "
        "can go back); hidden states go by way of this host"
    )
