"""Many requests over real processes: together, past each other, and each for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import pytest

from orchestrator.bundle.records import OpRecord
from orchestrator.failures import Crashed, OpRejected
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec
from orchestrator.stages import Stages
from tests.support.history_chain import expected_tokens
from tests.support.recovery_lab import QUICK, Ask, Watch, answers, history_spec
from tests.support.stages import PATIENT
from tools.bench.paced_stages import StagePace, paced_specs
from worker.protocol.ops import SampledReply, Sampling

T = TypeVar("T")


def with_pipeline(specs: Sequence[StageSpec], act: Callable[[Stages, Watch], Awaitable[T]]) -> T:
    async def run() -> T:
        watch = Watch()
        async with (
            asyncio.timeout(60),
            await Stages.start(specs, recorder=watch, timeouts=PATIENT, policy=QUICK) as pipeline,
        ):
            return await act(pipeline, watch)

    return asyncio.run(run())


def history(num_stages: int, **model_ids: str) -> list[StageSpec]:
    names = ("zero", "one", "two")
    return [
        history_spec(i, num_stages, model_id=model_ids.get(names[i])) for i in range(num_stages)
    ]


@pytest.mark.parametrize("num_stages", [1, 3])
def test_requests_go_together_and_get_what_they_get_alone(num_stages: int) -> None:
    asked = Ask(8, sampled=True, max_new_tokens=20)

    async def act(pipeline: Stages, watch: Watch) -> tuple[list[list[int]], int]:
        for pace in pipeline._scheduler._route.paces:
            # To stages that work for no time a busy machine is a long link, and all go alone.
            pace.heard = lambda op: None  # type: ignore[method-assign]
        got = await answers(pipeline, watch, asked.requests())
        return got, sum(record.op == "together" for record in watch.ops)

    got, together = with_pipeline(history(num_stages), act)
    assert (got, together > 20) == (asked.expected(num_stages), True)


def test_a_request_that_kills_the_stage_in_a_shared_op_ends_alone() -> None:
    asked = Ask(4, max_new_tokens=25)
    deadly = GenerationRequest(
        request_id="deadly", prompt="x" * 75, max_new_tokens=25, prefill_chunk=75, ignore_eos=True
    )

    async def act(pipeline: Stages, watch: Watch) -> tuple[list[list[int]], str]:
        others = asyncio.create_task(answers(pipeline, watch, asked.requests()))
        with pytest.raises(ExceptionGroup) as caught:
            await answers(pipeline, watch, [deadly])
        (failure,) = caught.value.exceptions
        assert isinstance(failure, Crashed)
        return await others, str(failure)

    got, text = with_pipeline(history(2, one="fatal:80"), act)
    assert got == asked.expected(2)
    assert "it was restarted 3 times in a row and lost again each time" in text


def test_a_step_that_is_refused_fails_alone() -> None:
    async def act(pipeline: Stages, watch: Watch) -> list[object]:
        for rid in "abc":
            await pipeline.prefill(rid, (1, 2, 3), 50, Sampling())
        # The first one keeps the stage, so that the others wait for it together.
        first = asyncio.create_task(pipeline.forward("a", (5,), 3, Sampling()))
        steps = [("b", 1000, 3), ("c", 5, 3), ("a", 6, 4)]
        asked = [pipeline.forward(rid, (token,), at, Sampling()) for rid, token, at in steps]
        return [await first, *await asyncio.gather(*asked, return_exceptions=True)]

    first, refused, *rest = with_pipeline(history(2), act)
    assert isinstance(refused, OpRejected)
    assert (refused.stage, refused.code) == (0, "bad_field")
    assert all(isinstance(reply, SampledReply) for reply in (first, *rest))


def test_guessed_tokens_are_checked_in_the_order_of_the_calls() -> None:
    prompt, size = "a guess", 12
    answer = expected_tokens(prompt, num_stages=3, prefill_chunk=50, max_new_tokens=size)

    async def act(pipeline: Stages, watch: Watch) -> list[int]:
        ids = [ord(character) % 100 for character in prompt]
        reply = await pipeline.prefill("r", ids, 50, Sampling())
        at = len(ids)
        wrong = await pipeline.verify("r", (answer[0], 99, 99, 99), at, Sampling())
        # Two more at once, of right guesses; and one that is given up, and stands in no one's way.
        given_up = asyncio.create_task(pipeline.verify("r", (98,) * 3, at + 1, Sampling()))
        await asyncio.sleep(0)
        given_up.cancel()
        parts = [(1, 5), (5, 6), (6, size - 1)]
        checked = await asyncio.gather(
            *(pipeline.verify("r", answer[a:b], at + a, Sampling()) for a, b in parts)
        )
        steps = [reply, wrong[0], *(step for part in checked for step in part)]
        return [step.token_id for step in steps if step.token_id is not None]

    assert with_pipeline(history(3), act) == answer


def spans(records: Sequence[OpRecord], stage: int, rid: str) -> list[tuple[float, float]]:
    """Return when the ops of a request on a stage were sent and answered."""
    return [
        (record.wall_ms, record.wall_ms + record.duration_ms)
        for record in records
        if (record.stage, record.rid) == (stage, rid)
    ]


def test_the_stages_work_on_chunks_of_one_prompt_at_once() -> None:
    async def act(pipeline: Stages, watch: Watch) -> list[bool]:
        await pipeline.prefill("r", (7,) * 40, 10, Sampling())
        first, second = spans(watch.ops, 0, "r"), spans(watch.ops, 1, "r")
        overlap = [next_[0] < now[1] for now, next_ in zip(second, first[1:], strict=False)]
        alone = [now[1] <= next_[0] for ops in (first, second) for now, next_ in pairwise(ops)]
        return [len(first) == len(second) == 4, *overlap, *alone]

    pace = StagePace(token_ms=4)
    assert all(with_pipeline(paced_specs(2, pace), act))


def test_a_step_does_not_find_a_chunk_begun_at_every_stage() -> None:
    async def act(pipeline: Stages, watch: Watch) -> list[int]:
        prefilling = asyncio.create_task(pipeline.prefill("p", (7,) * 200, 20, Sampling()))
        position = 1
        while not prefilling.done():
            await pipeline.forward("d", (7,), position, Sampling())
            position += 1
        chunks = [spans(watch.ops, stage, "p") for stage in range(3)]
        steps = [spans(watch.ops, stage, "d") for stage in range(3)]
        begun = []
        for asked, *onward in zip(*steps, strict=True):
            begun.append(
                sum(
                    asked[0] < chunk[0] < step[0]
                    for stage, step in enumerate(onward, 1)
                    for chunk in chunks[stage]
                )
            )
        return begun[len(begun) // 3 :]  # The pace is learnt by then.

    begun = with_pipeline(paced_specs(3, StagePace(step_ms=2, token_ms=4)), act)
    # Without a look upstream it is one at each of the two stages after the first.
    assert (len(begun) > 4, sum(begun) <= len(begun)) == (True, True)


def test_closing_ends_whoever_waits_for_a_turn() -> None:
    async def act(pipeline: Stages, watch: Watch) -> set[type[BaseException]]:
        waiting = [
            asyncio.create_task(pipeline.forward(f"{i}", (7,), 1, Sampling())) for i in range(9)
        ]
        waiting.append(asyncio.create_task(pipeline.prefill("p", (7,) * 99, 9, Sampling())))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await pipeline.aclose()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        return {type(error) for error in ended if isinstance(error, BaseException)}

    pace = StagePace(step_ms=20, token_ms=20)
    assert with_pipeline(paced_specs(2, pace), act) == {ConnectionError}
