"""Whatever chats come, stop, are freed or lost: answers are those without reuse, nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.bundle.records import NoRecorder
from orchestrator.chunk import Chunk
from orchestrator.generate import generate
from orchestrator.prefixes import Prefixes, Reuse
from orchestrator.request import GenerationRequest
from tests.support.history_worker import ANSWER, END, QUESTION, chat_ids
from worker.protocol.ops import SampledReply, Sampling

Row = tuple[int, tuple[int, int] | None]
MOST_CACHES, MOST_POSITIONS = 4, 60


@dataclass
class Marked:
    """Stages whose tokens are hashes of how each row was computed: in which chunk, or as a step.

    Attributes:
        caches: rows of each cache, as all stages hold them.
        users: caches that an op is at work on, or that a request has.
        resting: caches that are kept.
    """

    caches: dict[object, list[Row]] = field(default_factory=dict)
    freed: set[object] = field(default_factory=set)
    rebuilt: set[object] = field(default_factory=set)
    resting: set[object] = field(default_factory=set)
    busy: set[object] = field(default_factory=set)

    facts = SimpleNamespace(
        max_context=None,
        eos_token_ids=frozenset({END}),
        shared_capabilities={"crop", "as_steps"},
    )

    async def tokenize(self, rid: object, prompt: Any, messages: Any, **more: Any) -> Any:
        await asyncio.sleep(0)
        return tuple(chat_ids([(one["role"], one["content"]) for one in messages]))

    async def detokenize(
        self, rid: object, tokens: Sequence[int], *, show_special: bool = False
    ) -> str:
        return ""

    async def run(self, rid: object, chunks: Sequence[Chunk], sampling: Sampling) -> SampledReply:
        reply = SampledReply()
        for chunk in chunks:
            reply = await self._work(rid, chunk)
        return reply

    async def forward(
        self, rid: object, tokens: Sequence[int], position: int, sampling: Sampling
    ) -> SampledReply:
        return await self._work(rid, Chunk(tuple(tokens), position))

    async def _work(self, rid: object, chunk: Chunk) -> SampledReply:
        assert rid not in self.busy, "two requests use one cache"
        assert rid not in self.resting, "a cache is used that nobody has taken up"
        self.busy.add(rid)
        try:
            await asyncio.sleep(0)
            if rid in self.freed:  # A stage is sent all of it again.
                self.freed.remove(rid)
                self.rebuilt.add(rid)
            rows = self.caches.setdefault(rid, [])
            assert chunk.position <= len(rows)
            del rows[chunk.position :]
            is_steps = chunk.as_steps or (len(chunk.tokens) == 1 and chunk.position > 0)
            mark = None if is_steps else (chunk.position, chunk.end)
            rows += [(token, mark) for token in chunk.tokens]
            token = hashlib.sha256(repr(rows).encode()).digest()[0] % 100
            await asyncio.sleep(0)
        finally:
            self.busy.remove(rid)
        return SampledReply(token_id=token)

    def history_bytes(self, rid: object) -> int:
        return 0

    def rest(self, rid: object) -> None:
        self.resting.add(rid)

    def wake(self, rid: object) -> None:
        self.resting.remove(rid)
        self.rebuilt.discard(rid)

    def has_history(self, rid: object) -> bool:
        return rid in self.caches

    def was_rebuilt(self, rid: object) -> bool:
        return rid in self.rebuilt

    async def release(self, rid: object) -> None:
        assert rid not in self.busy
        self.resting.discard(rid)
        self.freed.discard(rid)
        self.caches.pop(rid, None)
        await asyncio.sleep(0)

    def lose(self) -> None:
        """Lose a stage: what rests is not sent to it again."""
        for rid in self.resting:
            del self.caches[rid]
        self.resting.clear()


def messages_of(chat: Sequence[tuple[str, list[int]]]) -> tuple[dict[str, str], ...]:
    return tuple({"role": role, "content": " ".join(map(str, ids))} for role, ids in chat)


async def answered(
    stages: Any, prefixes: Prefixes, chat: Sequence[tuple[str, list[int]]], count: int, stop: int
) -> list[int]:
    """Return at most `stop` tokens of an answer of `count`."""
    request = GenerationRequest(
        request_id="same for all", messages=messages_of(chat), max_new_tokens=count, prefill_chunk=3
    )
    tokens: list[int] = []
    outputs = generate(stages, request, NoRecorder(), None, prefixes)
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            tokens.append(output.token_id)
            assert output.cached_tokens < output.prompt_tokens
            if len(tokens) == stop:
                break
    return tokens


contents = st.lists(st.integers(0, 3), max_size=5)
turns = st.tuples(contents, st.integers(1, 6), st.integers(1, 8), st.sampled_from("aaabflr"))


@given(
    st.lists(st.lists(turns, min_size=1, max_size=4), min_size=1, max_size=5),
    st.sampled_from([Reuse.TURNS, Reuse.CHUNKS]),
)
def test_answers_are_those_without_reuse_and_nothing_is_left(
    chats: list[list[tuple[list[int], int, int, str]]], reuse: Reuse
) -> None:
    async def run() -> None:
        stages = Marked()
        pipeline: Any = stages
        prefixes = Prefixes(pipeline, reuse, most_caches=MOST_CACHES, most_positions=MOST_POSITIONS)

        async def talk(plan: list[tuple[list[int], int, int, str]]) -> None:
            chat: list[tuple[str, list[int]]] = []
            for question, count, stop, event in plan:
                chat.append(("user", question))
                if event == "l":
                    stages.lose()
                elif event == "f":
                    stages.freed |= set(stages.caches)
                tokens = await answered(pipeline, prefixes, chat, count, stop)
                alone: Any = Marked()
                cold = Prefixes(alone, reuse)
                assert tokens == await answered(alone, cold, chat, count, stop)
                await cold.aclose()
                held, positions = prefixes.held
                assert held <= MOST_CACHES and positions <= MOST_POSITIONS
                said = [token for token in tokens if token not in (END, ANSWER, QUESTION)]
                # Some clients send back another text than they were given.
                chat.append(("assistant", [*said, 1] if event == "r" else said))

        await asyncio.gather(*(talk(plan) for plan in chats))
        await prefixes.aclose()
        assert (prefixes.held, stages.caches) == ((0, 0), {})

    asyncio.run(run())
