"""Guessing ahead over real workers: the same tokens, also when a stage is lost meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest

from orchestrator.generate import generate
from orchestrator.speculation.draft_model import DraftRefused, check_language, start_draft
from orchestrator.speculation.model_drafter import ModelDrafter
from orchestrator.speculation.speculator import lacking
from orchestrator.stages import Stages
from tests.support.recovery_lab import QUICK, Ask, Watch, history_spec, inflict
from tests.support.speculation import Guessing, Told
from tests.support.stages import PATIENT, peer_spec, stub_specs

T = TypeVar("T")
NUM_STAGES = 3


@dataclass
class Run:
    """A pipeline of history workers, whose outputs are hashes of all that they were sent."""

    pipeline: Stages
    watch: Watch

    async def ask(
        self,
        asked: Ask,
        chance: float,
        *,
        takes_time: bool = False,
        on_token: Callable[[int], None] = lambda count: None,
        stop_after: int | None = None,
    ) -> list[list[int]]:
        """Return the answers to requests that are all under way, each guessed by its own oracle."""

        async def one(index: int) -> list[int]:
            request, expected = asked.requests()[index], asked.expected(NUM_STAGES)[index]
            drafter = Told(
                knowing(request.prompt or "", expected, chance, seed=index), takes_time=takes_time
            )
            pipeline: Any = self.pipeline
            speculator: Any = Guessing(pipeline, drafter)
            outputs = generate(self.pipeline, request, self.watch, speculator)
            tokens: list[int] = []
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    tokens.append(output.token_id)
                    on_token(len(tokens))
                    if len(tokens) == stop_after:
                        break
            return tokens

        return await asyncio.gather(*(one(i) for i in range(asked.count)))


def knowing(
    prompt: str, answer: Sequence[int], chance: float, seed: int
) -> Callable[[Sequence[int], int], Sequence[int]]:
    """Return what guesses each token of an answer with a chance, and another one else."""
    luck = random.Random(seed)

    def tell(ids: Sequence[int], most: int) -> list[int]:
        done = len(ids) - len(prompt)
        right = answer[done : done + luck.randint(1, most)]
        return [token if luck.random() < chance else (token + 1) % 100 for token in right]

    return tell


def with_run(act: Callable[[Run], Awaitable[T]], history_bytes: int = 1 << 20) -> T:
    async def run() -> T:
        watch = Watch()
        specs = [history_spec(i, NUM_STAGES) for i in range(NUM_STAGES)]
        async with await Stages.start(
            specs,
            recorder=watch,
            timeouts=PATIENT,
            policy=replace(QUICK, history_bytes=history_bytes),
        ) as pipeline:
            return await act(Run(pipeline, watch))

    return asyncio.run(run())


def test_the_tokens_are_the_same_and_come_in_fewer_passes() -> None:
    asked = Ask(3, max_new_tokens=40)
    drawn = replace(asked, sampled=True)

    async def act(run: Run) -> tuple[object, ...]:
        got = [
            await run.ask(kind, chance, takes_time=takes_time)
            for kind in (asked, drawn)
            for chance, takes_time in ((0.0, False), (0.7, False), (0.7, True))
        ]
        before = len(run.watch.ops)
        perfect = await run.ask(asked, 1.0)
        passes = sum(op.op == "forward_and_sample" for op in run.watch.ops[before:])
        together = sum(op.op == "together" for op in run.watch.ops[before:])
        return got, perfect, passes + together < 3 * 40

    plain, drawn_plain = asked.expected(NUM_STAGES), drawn.expected(NUM_STAGES)
    assert with_run(act) == ([plain] * 3 + [drawn_plain] * 3, plain, True)


@pytest.mark.parametrize(("stage", "history_bytes"), [(0, 1 << 20), (1, 0), (2, 1 << 20)])
def test_a_stage_that_is_lost_while_guesses_are_under_way_changes_nothing(
    stage: int, history_bytes: int
) -> None:
    asked = Ask(2, sampled=True, max_new_tokens=40)

    async def act(run: Run) -> tuple[object, int]:
        killed = False

        def on_token(count: int) -> None:
            nonlocal killed
            if count == 8 and not killed:
                killed = True
                inflict("kill", run.watch.pids[stage])

        got = await run.ask(asked, 0.8, on_token=on_token)
        return got, sum(record.ok for record in run.watch.recoveries)

    assert with_run(act, history_bytes) == (asked.expected(NUM_STAGES), 1)


def test_an_answer_that_is_cut_short_leaves_nothing_and_the_next_is_right() -> None:
    asked = Ask(1, max_new_tokens=40)
    (whole,) = asked.expected(NUM_STAGES)

    async def act(run: Run) -> tuple[object, ...]:
        cut = await run.ask(asked, 0.9, stop_after=7)
        held = run.pipeline.history_bytes("r0")
        return cut, held, await run.ask(asked, 0.9)

    assert with_run(act) == ([whole[:7]], 0, [whole])


def test_a_draft_model_that_is_the_model_itself_is_always_right() -> None:
    """One whole history worker drafts for another one; it goes back where the text does."""
    asked = Ask(1, max_new_tokens=30)
    (expected,) = asked.expected(1)

    async def run() -> tuple[list[int], bool]:
        watch = Watch()
        async with (
            await Stages.start([history_spec(0, 1)], recorder=watch, timeouts=PATIENT) as model,
            await Stages.start([history_spec(0, 1)], timeouts=PATIENT) as draft,
        ):
            request = asked.requests()[0]
            drafter: Any = ModelDrafter(draft, request, 100)
            pipeline: Any = model
            speculator: Any = Guessing(pipeline, drafter)
            tokens = []
            async with contextlib.aclosing(generate(model, request, watch, speculator)) as outputs:
                async for output in outputs:
                    tokens.append(output.token_id)
            record = watch.requests[0]
            return tokens, record.right_guesses == record.guessed_tokens

    tokens, all_right = asyncio.run(run())
    assert (tokens, all_right) == (expected, True)


def test_what_cannot_verify_or_guess_is_told_in_one_sentence() -> None:
    async def run() -> tuple[str | None, str, str]:
        async with (
            await Stages.start(stub_specs(2), timeouts=PATIENT) as stub,
            await start_draft(history_spec(0, 1), PATIENT) as draft,
        ):
            await check_language(draft, draft, "itself")
            with pytest.raises(DraftRefused) as stranger:
                await check_language(stub, draft, "small/model")
            with pytest.raises(DraftRefused) as stuck:
                await start_draft(peer_spec("honest"), PATIENT)
            async with await Stages.start([peer_spec("honest")], timeouts=PATIENT) as peer:
                lack = lacking(peer)
            assert lacking(stub) is None
            return lack, str(stranger.value), str(stuck.value)

    lack, stranger, stuck = asyncio.run(run())
    assert lack == (
        "nothing is guessed ahead: stage 0 on honest lacks as_steps, sample_steps, crop"
    )
    assert stranger == (
        "--draft-model-id small/model has another tokenizer (vocabulary of 100, the model's is "
        "32): 'The quick brown fox '… is 70 tokens [84, 4, 1, 32]… there and 12 tokens [289, 542, "
        "554, 336]… in the model; give a smaller model of the same family"
    )
    assert stuck == (
        "the draft model (of an unknown kind) cannot go back to before a wrong guess, as its state "
        "has no positions; give --draft-model-id a model with attention in all layers"
    )


def test_a_draft_model_that_is_lost_is_missed_by_nobody() -> None:
    asked = Ask(1, max_new_tokens=40)
    (expected,) = asked.expected(NUM_STAGES)

    async def act(run: Run) -> list[int]:
        request = asked.requests()[0]
        kept = Watch()
        tokens = []
        async with await Stages.start(
            [history_spec(0, 1)], recorder=kept, timeouts=PATIENT
        ) as draft:
            told: Any = run.pipeline
            drafter: Any = ModelDrafter(draft, request, 100)
            speculator: Any = Guessing(told, drafter)
            outputs = generate(run.pipeline, request, run.watch, speculator)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    tokens.append(output.token_id)
                    if len(tokens) == 10:
                        inflict("kill", kept.pids[0])
        return tokens

    assert with_run(act) == expected
