"""SmolLM2 split over real worker processes says exactly what plain transformers says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from tests.support.oracle import Answer, Oracle, Question
from tests.support.prompts import questions
from worker.protocol.ops import GenerateFull, Sampling

PREFILL_CHUNK = 256
MAX_NEW_TOKENS = 16
IN_FLIGHT = 4
QUESTIONS = questions(MAX_NEW_TOKENS)
# One of each kind, for the splits that are tried less thoroughly: long, script, emoji, chat.
FEW = (0, 16, 22, 33)

# On two busy cores the oracle and two workers share what a test of its own would have alone.
pytestmark = [pytest.mark.demo_model, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def oracle(demo_model_path: Path) -> Iterator[Oracle]:
    """Plain transformers, computing beside the workers."""
    process = Oracle(demo_model_path, QUESTIONS, PREFILL_CHUNK)
    yield process
    process.close()


def stage_specs(model: Path, num_stages: int) -> list[StageSpec]:
    options = WorkerOptions(model_id=str(model), threads=1)
    return [StageSpec(stage=i, num_stages=num_stages, options=options) for i in range(num_stages)]


async def answer(pipeline: Stages, rid: int, question: Question) -> Answer:
    """Answer greedily, in chunks of the prompt and then token by token."""
    messages = question.messages
    tokens = list(await pipeline.tokenize(rid, question.prompt, messages))
    new: list[int] = []
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = tokens[start : start + PREFILL_CHUNK]
        is_last = start + len(chunk) == len(tokens)
        reply = await pipeline.forward(rid, chunk, start, Sampling() if is_last else None)
    while True:
        assert reply.token_id is not None
        new.append(reply.token_id)
        if len(new) == question.max_new_tokens or new[-1] in pipeline.facts.eos_token_ids:
            break
        position = len(tokens) + len(new) - 1
        reply = await pipeline.forward(rid, new[-1:], position, Sampling())
    text = await pipeline.detokenize(rid, new)
    await pipeline.release(rid)
    return Answer(prompt_tokens=tokens, tokens=new, text=text)


async def answer_all(model: Path, num_stages: int, asked: Sequence[Question]) -> list[Answer]:
    """Start workers and answer everything, several requests at a time, op by op in turn."""
    async with await Stages.start(stage_specs(model, num_stages)) as pipeline:
        free = asyncio.Semaphore(IN_FLIGHT)

        async def one(rid: int, question: Question) -> Answer:
            async with free:
                return await answer(pipeline, rid, question)

        return await asyncio.gather(*(one(rid, q) for rid, q in enumerate(asked)))


def test_two_stages_give_the_tokens_and_text_of_the_whole_model(
    demo_model_path: Path, oracle: Oracle
) -> None:
    split = asyncio.run(answer_all(demo_model_path, 2, QUESTIONS))
    expected = oracle.answers()
    assert [asdict(one) for one in split] == [asdict(one) for one in expected]
    lengths = [len(one.prompt_tokens) for one in expected]
    assert len(QUESTIONS) >= 30 and sum(length > 600 for length in lengths) >= 3


def test_three_stages_give_the_tokens_and_text_of_the_whole_model(
    demo_model_path: Path, oracle: Oracle
) -> None:
    split = asyncio.run(answer_all(demo_model_path, 3, [QUESTIONS[i] for i in FEW]))
    assert split == [oracle.answers()[i] for i in FEW]


def test_one_worker_gives_the_tokens_of_the_whole_model_op_by_op_and_at_once(
    demo_model_path: Path, oracle: Oracle
) -> None:
    async def both_ways() -> tuple[list[Answer], list[list[int]]]:
        async with await Stages.start(stage_specs(demo_model_path, 1)) as pipeline:
            by_op = [await answer(pipeline, i, QUESTIONS[i]) for i in FEW[2:]]
            at_once = []
            for i in FEW[:2]:
                request = GenerateFull(
                    request_id=100 + i,
                    prompt=QUESTIONS[i].prompt or "",
                    max_tokens=MAX_NEW_TOKENS,
                    prefill_chunk=PREFILL_CHUNK,
                )
                at_once.append(list((await pipeline.stages[0].call(request)).tokens))
            return by_op, at_once

    by_op, at_once = asyncio.run(both_ways())
    expected = oracle.answers()
    assert by_op == [expected[i] for i in FEW[2:]]
    assert at_once == [expected[i].tokens for i in FEW[:2]]
