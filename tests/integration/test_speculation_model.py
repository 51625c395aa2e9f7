"""SmolLM2 over two workers says what plain transformers says, whatever is guessed ahead."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bundle.records import NoRecorder
from orchestrator.generate import generate
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.speculation.speculator import Speculator
from orchestrator.stages import Stages
from tests.support.oracle import Oracle, Question
from tests.support.speculation import Guessing, Told
from worker.protocol.ops import Sampling

NEW_TOKENS = 20
PREFILL_CHUNK = 16
QUESTIONS = [
    Question(prompt="one two three four one two three four one two", max_new_tokens=NEW_TOKENS),
    Question(
        messages=[{"role": "user", "content": "Repeat: the red fox saw the red fox run."}],
        max_new_tokens=NEW_TOKENS,
    ),
]

pytestmark = [pytest.mark.demo_model, pytest.mark.slow, pytest.mark.timeout(300)]


def knowing(ids: Sequence[int], chance: float, seed: int) -> Callable[..., list[int]]:
    """Return what guesses each token of a text with a chance, and one of another place else."""
    luck = random.Random(seed)

    def tell(known: Sequence[int], most: int) -> list[int]:
        right = ids[len(known) : len(known) + luck.randint(1, most)]
        return [token if luck.random() < chance else luck.choice(ids) for token in right]

    return tell


async def answer(
    pipeline: Stages, question: Question, rid: str, speculator: Any = None, **sampling: Any
) -> list[int]:
    request = GenerationRequest(
        request_id=rid,
        prompt=question.prompt,
        messages=None if question.messages is None else tuple(question.messages),
        max_new_tokens=question.max_new_tokens,
        prefill_chunk=PREFILL_CHUNK,
        sampling=Sampling(**sampling),
    )
    outputs = generate(pipeline, request, NoRecorder(), speculator)
    async with contextlib.aclosing(outputs):
        return [output.token_id async for output in outputs]


async def all_ways(pipeline: Stages) -> tuple[list[list[int]], list[list[int]], list[bool]]:
    """Return answers guessed by lookup and by an oracle, and whether drawn ones are the same."""
    by_lookup, by_oracle, same = [], [], []
    lookup = Speculator(pipeline)
    drawn: dict[str, Any] = {"temperature": 1.0, "seed": 7, "repetition_penalty": 1.2}
    for i, question in enumerate(QUESTIONS):
        prompt = await pipeline.tokenize(f"t{i}", question.prompt, question.messages)
        by_lookup.append(await answer(pipeline, question, f"l{i}", lookup))
        told: Any = pipeline
        for options in ({}, drawn)[: 2 - i]:
            plain = await answer(pipeline, question, f"p{i}", **options)
            drafter = Told(knowing([*prompt, *plain], 0.85, seed=i))
            guessed = await answer(pipeline, question, f"g{i}", Guessing(told, drafter), **options)
            same.append(guessed == plain)
            if not options:
                by_oracle.append(guessed)
    return by_lookup, by_oracle, same


def test_guesses_leave_the_tokens_those_of_plain_transformers(demo_model_path: Path) -> None:
    oracle = Oracle(demo_model_path, QUESTIONS, PREFILL_CHUNK)

    async def run() -> tuple[list[list[int]], list[list[int]], list[bool]]:
        options = WorkerOptions(model_id=str(demo_model_path), threads=1)
        specs = [StageSpec(stage=i, num_stages=2, options=options) for i in range(2)]
        async with await Stages.start(specs) as pipeline:
            return await all_ways(pipeline)

    try:
        by_lookup, by_oracle, same = asyncio.run(run())
        expected = [one.tokens for one in oracle.answers()]
    finally:
        oracle.close()
    assert (by_lookup, by_oracle, same) == (expected, expected, [True] * 3)
