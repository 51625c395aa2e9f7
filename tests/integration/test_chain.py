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
from orchestrator.pipeline import Pipeline
from orchestrator.specs import StageSpec
from tests.support.recovery_lab import QUICK, Ask, Watch, answers, history_spec, inflict
from tests.support.stages import PATIENT, MemoryRecorder, stub_specs
from worker.links import Links
from worker.protocol.ops import Listen, SampledReply, Sampling

pytestmark = pytest.mark.skipif(not Links().capabilities, reason="openssl is not here")

T = TypeVar("T")
ASKED = Ask(1, sampled=True)


def run_chain(
    specs: list[StageSpec],
    act: Callable[[Pipeline, Watch], Awaitable[T]],
    notices: list[str] | None = None,
) -> T:
    async def run() -> T:
        watch = Watch()
        async with await Pipeline.start(
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


async def relinked(pipeline: Pipeline) -> bool:
    """Ask until every link is live: what needs a link has it made again."""
    async with asyncio.timeout(20):
        while not all(pipeline.links_live):
            await pipeline.forward("again", (1,), 0, None)
    return True


def hidden_lines(recorder: MemoryRecorder) -> int:
    """How many replies brought hidden states to the orchestrator."""
    with_some = [line for line in recorder.lines if b'"hidden_b64":"' in line]
    return sum(b'"hidden_b64":""' not in line for line in with_some)


def test_no_hidden_state_comes_by_and_the_tokens_are_those_of_a_star() -> None:
    async def ask(pipeline: Pipeline, watch: Watch) -> tuple[list[SampledReply], int]:
        replies = [
            await pipeline.forward("r", (1, 2, 3), 0, Sampling()),
            await pipeline.forward("r", (4,), 3, Sampling()),
        ]
        return replies, hidden_lines(watch)

    async def star() -> list[SampledReply]:
        async with await Pipeline.start(stub_specs(4), timeouts=PATIENT) as pipeline:
            return (await ask(pipeline, Watch()))[0]

    assert run_chain(stub_specs(4), ask) == (asyncio.run(star()), 0)


def test_an_answer_over_links_is_the_answer() -> None:
    async def act(pipeline: Pipeline, watch: Watch) -> tuple[object, ...]:
        got = await answers(pipeline, watch, ASKED.requests())
        return got, pipeline.links_live, hidden_lines(watch)

    assert run_chain(history_specs(), act) == (ASKED.expected(3), (True, True), 0)


@pytest.mark.parametrize(("stage", "count"), [(0, 1), (1, 1), (2, 1), (1, 4)])
def test_a_lost_stage_comes_back_and_is_linked_again(stage: int, count: int) -> None:
    asked = Ask(count)

    async def act(pipeline: Pipeline, watch: Watch) -> tuple[object, ...]:
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
    async def act(pipeline: Pipeline, watch: Watch) -> tuple[object, ...]:
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


def test_links_that_are_lost_all_the_time_leave_the_answers_as_they_are() -> None:
    asked, cuts = Ask(3), list[asyncio.Task[object]]()

    async def act(pipeline: Pipeline, watch: Watch) -> tuple[object, ...]:
        def on_op(record: OpRecord) -> None:
            if record.op == "forward_range" and len(watch.ops) % 5 == 0:
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

    async def act(pipeline: Pipeline, watch: Watch) -> tuple[object, bool]:
        reply = await pipeline.forward("r", (1, 2, 3), 0, Sampling())
        return pipeline.links_live, reply.token_id is not None

    assert run_chain(specs, act, notices) == ((False, False), True)
    (notice,) = notices
    assert notice == (
        "stage 2 on local cannot be linked (it needs the program openssl, and a model whose state "
        "can go back); hidden states go by way of this host"
    )
