"""A real model whose stages are lost says what plain transformers says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.recovery import RecoveryPolicy
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from orchestrator.timeouts import Timeouts
from tests.support.oracle import Oracle, Question
from tests.support.recovery_lab import Ask, Watch, answers, inflict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

GREEDY = Ask(2, max_new_tokens=16)
SAMPLED = Ask(2, sampled=True, max_new_tokens=16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose tokens are bytes."""
    from tests.support.tiny import tiny_checkpoint
    from tests.support.tokenizers import byte_tokenizer

    folder = tiny_checkpoint(tmp_path_factory.mktemp("model"), "llama", vocab_size=300)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def oracle(model: Path) -> Iterator[Oracle]:
    """Plain transformers, computing beside the workers."""
    questions = [
        Question(prompt=request.prompt, max_new_tokens=GREEDY.max_new_tokens)
        for request in GREEDY.requests()
    ]
    process = Oracle(model, questions, GREEDY.prefill_chunk)
    yield process
    process.close()


def test_the_tokens_are_those_of_transformers_whichever_stage_is_lost(
    model: Path, oracle: Oracle
) -> None:
    async def run() -> tuple[list[list[list[int]]], list[list[list[int]]], int]:
        options = WorkerOptions(model_id=str(model), threads=1)
        specs = [StageSpec(stage=i, num_stages=3, options=options) for i in range(3)]
        watch = Watch()
        async with await Stages.start(
            specs,
            recorder=watch,
            timeouts=Timeouts(silence_s=60.0),
            policy=RecoveryPolicy(backoff_s=(0.0,)),
        ) as pipeline:
            quiet = await answers(pipeline, watch, SAMPLED.requests())
            greedy: list[list[list[int]]] = []
            sampled: list[list[list[int]]] = []
            for ask, kept, lost in ((GREEDY, greedy, 1), (SAMPLED, sampled, 0)):

                def lose(rid: str, count: int, lost: int = lost) -> None:
                    if (rid, count) == ("r1", 9):
                        inflict("kill", watch.pids[lost])

                kept.append(await answers(pipeline, watch, ask.requests(), lose))
            restarts = sum(record.ok for record in watch.recoveries)
        return greedy, [quiet, *sampled], restarts

    greedy, (quiet, sampled), restarts = asyncio.run(run())
    assert greedy == [[answer.tokens for answer in oracle.answers()]]
    assert (sampled, restarts) == (quiet, 2)
