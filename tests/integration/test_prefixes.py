"""A chat's turns over real workers whose tokens are hashes of every op that made their caches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.generate import generate
from orchestrator.prefixes import Prefixes, Reuse
from orchestrator.request import GenerationRequest
from orchestrator.speculation.speculator import Speculator
from orchestrator.stages import Stages
from tests.support.history_chain import Session
from tests.support.history_worker import END, chat_ids
from tests.support.recovery_lab import HASTY, QUICK, Watch, history_spec, inflict
from worker.protocol.ops import Sampling

NUM_STAGES = 2
CHUNK = 4
NEW_TOKENS = 9
ROOMY_BYTES = 1 << 30
pytestmark = pytest.mark.timeout(120)


@dataclass
class Chat:
    """What was said, and one session of the rule that has heard all of it.

    Attributes:
        cached: of each turn, the positions of its prompt that were not computed.
    """

    pipeline: Stages
    watch: Watch
    prefixes: Prefixes
    name: str
    speculator: Speculator | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    turns: int = 0
    cached: list[int] = field(default_factory=list)
    session: Session = field(default_factory=lambda: Session(NUM_STAGES, CHUNK))

    def ask(self, question: str) -> list[int]:
        """Add a question; return the prompt."""
        self.messages.append({"role": "user", "content": question})
        self.turns += 1
        return chat_ids([(m["role"], m["content"]) for m in self.messages])

    async def answer(self, stop_after: int | None = None, **options: Any) -> list[int]:
        """Have the newest question answered; the answer becomes part of the chat."""
        request = GenerationRequest(
            request_id=f"{self.name}-{self.turns}",
            messages=tuple(self.messages),
            max_new_tokens=NEW_TOKENS,
            prefill_chunk=CHUNK,
            **options,
        )
        tokens: list[int] = []
        outputs = generate(self.pipeline, request, self.watch, self.speculator, self.prefixes)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                tokens.append(output.token_id)
                if len(tokens) == stop_after:
                    break
        said = [token for token in tokens if token != END]
        self.messages.append({"role": "assistant", "content": " ".join(map(str, said))})
        self.cached.append(output.cached_tokens)
        return tokens

    async def turn(self, question: str, sampling: Sampling | None = None) -> bool:
        """Have a question answered; tell whether the answer is the session's."""
        prompt, sampling = self.ask(question), sampling or Sampling()
        expected = self.session.answer(
            prompt, NEW_TOKENS, temperature=sampling.temperature, seed=sampling.seed, end=END
        )
        return await self.answer(sampling=sampling) == expected

    @property
    def held(self) -> int:
        """Positions that the stages hold if all is kept."""
        return len(self.session.fed)


@dataclass
class Place:
    """Running stages, and the prefixes that are kept on them."""

    pipeline: Stages
    watch: Watch
    prefixes: Prefixes

    def chat(self, name: str, prefixes: Prefixes | None = None, **more: Any) -> Chat:
        return Chat(self.pipeline, self.watch, prefixes or self.prefixes, name, **more)


@contextlib.asynccontextmanager
async def started(budget_bytes: int = ROOMY_BYTES, **options: Any) -> AsyncIterator[Place]:
    watch = Watch()
    specs = [history_spec(i, NUM_STAGES, model_id=f"chat:{budget_bytes}") for i in range(2)]
    async with await Stages.start(specs, recorder=watch, timeouts=HASTY, policy=QUICK) as pipeline:
        prefixes = Prefixes(pipeline, **options)
        try:
            yield Place(pipeline, watch, prefixes)
        finally:
            await prefixes.aclose()
            assert prefixes.held == (0, 0)
            assert not any(pipeline._crew.history.rids(i) for i in range(NUM_STAGES))


QUESTIONS = ("1 2 3 4 5 6 7", "8 9", "10 11 12", "13")


def test_each_turn_is_that_of_one_session_and_computes_its_news_alone() -> None:
    async def run() -> tuple[list[bool], list[int], list[int], tuple[int, int, int]]:
        async with started() as place:
            chat, same, held = place.chat("c"), [], [0]
            for question in QUESTIONS:
                same.append(await chat.turn(question))
                held.append(chat.held)
            counts = place.prefixes
            return same, chat.cached, held[:-1], (counts.lookups, counts.hits, counts.evicted)

    same, cached, held, counts = asyncio.run(run())
    assert (same, cached, counts) == ([True] * 4, held, (4, 3, 0))


def test_a_chat_that_nobody_holds_gives_the_same_answer() -> None:
    async def run() -> tuple[list[bool], list[int]]:
        async with started() as place:
            chat, same = place.chat("c"), []
            for question in QUESTIONS:
                chat.prefixes = Prefixes(place.pipeline)
                same.append(await chat.turn(question, Sampling(temperature=1.0, seed=5)))
                await chat.prefixes.aclose()
            return same, chat.cached

    assert asyncio.run(run()) == ([True] * 4, [0] * 4)


def test_chats_at_once_do_not_mix_and_guesses_change_nothing() -> None:
    async def run() -> tuple[list[bool], int]:
        async with started() as place:
            speculator = Speculator(place.pipeline)
            chats = [
                place.chat(f"c{i}", speculator=speculator if i % 2 else None) for i in range(6)
            ]
            same: list[bool] = []
            for question in QUESTIONS:
                same += await asyncio.gather(*(chat.turn(question) for chat in chats))
            return same, place.prefixes.hits

    same, hits = asyncio.run(run())
    assert (same, hits) == ([True] * 24, 18)


@pytest.mark.parametrize("guesses", [False, True])
def test_an_answer_that_was_stopped_is_gone_on_from(guesses: bool) -> None:
    async def run() -> tuple[list[int], list[int], int]:
        async with started() as place:
            speculator = Speculator(place.pipeline) if guesses else None
            chat = place.chat("c", speculator=speculator)
            length = len(chat.ask("1 2 3"))
            await chat.answer(stop_after=4)
            chat.ask("9")
            warm = await chat.answer()
            cold = place.chat("d", Prefixes(place.pipeline), messages=chat.messages[:-1], turns=9)
            again = await cold.answer()
            await cold.prefixes.aclose()
            # The fourth was seen, and the next step may be under way.
            return warm, again, chat.cached[1] - length

    warm, cold, kept = asyncio.run(run())
    assert (warm, kept in (3, 4)) == (cold, True)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_stage_that_is_lost_between_turns_costs_the_cache_and_no_bit(lost: int) -> None:
    async def run() -> tuple[list[bool], list[int], int, int]:
        async with started() as place:
            chat = place.chat("c")
            same = [await chat.turn("1 2 3 4 5")]
            inflict("kill", place.watch.pids[lost])
            await place.watch.recovered(1)
            same += [await chat.turn("6 7"), await chat.turn("8")]
            replayed = sum(record.requests for record in place.watch.recoveries)
            return same, chat.cached[:2], replayed, place.prefixes.lost

    assert asyncio.run(run()) == ([True] * 3, [0, 0], 0, 1)


def test_a_stage_that_is_lost_in_a_later_turn_is_sent_the_earlier_ones_too() -> None:
    async def run() -> tuple[list[bool], list[bool]]:
        async with started() as place:
            chat = place.chat("c")
            same = [await chat.turn("1 2 3 4 5"), await chat.turn("6 7")]
            killed = False

            def on_op(record: Any) -> None:
                nonlocal killed
                if not killed and record.op == "decode_step":
                    killed = True
                    inflict("kill", place.watch.pids[1])

            place.watch.on_op = on_op
            same.append(await chat.turn("8"))
            place.watch.on_op = lambda record: None
            same.append(await chat.turn("9"))
            return same, [cached > 0 for cached in chat.cached]

    assert asyncio.run(run()) == ([True] * 4, [False, True, True, True])


def test_a_cache_that_a_worker_freed_is_computed_again_and_counted() -> None:
    async def run() -> tuple[list[bool], list[int], bool]:
        async with started(budget_bytes=8 * 64) as place:
            chats = [place.chat(f"c{i}") for i in range(3)]
            same = []
            for question in ("1 2 3 4 5 6 7 8 9 10 11 12", "13 14"):
                for i, chat in enumerate(chats):
                    same.append(await chat.turn(f"{i} {question}"))
            return same, [chat.cached[1] for chat in chats], place.prefixes.evicted == 3

    assert asyncio.run(run()) == ([True] * 6, [0] * 3, True)


def test_whole_chunks_are_shared_where_answers_are_not_told_apart() -> None:
    async def run() -> tuple[list[list[int]], list[int]]:
        async with started(reuse=Reuse.CHUNKS) as place:
            chat, answers = place.chat("c"), []
            for prefixes in (place.prefixes, place.prefixes, Prefixes(place.pipeline, Reuse.OFF)):
                chat.prefixes = prefixes
                chat.messages.clear()
                chat.ask("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16")
                answers.append(await chat.answer())
            return answers, chat.cached

    answers, cached = asyncio.run(run())
    assert (answers, cached) == ([answers[2]] * 3, [0, 16, 0])
