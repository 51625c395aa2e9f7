"""Pipelines in this process that answer by a rule, and drafters that guess what they are told."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from orchestrator.chunk import Chunk
from orchestrator.failures import OpRejected
from orchestrator.prefixes import Lease
from orchestrator.request import GenerationRequest
from orchestrator.speculation.drafter import Draft, Drafter
from orchestrator.speculation.pass_costs import PassCosts
from orchestrator.speculation.speculated import Bounds, SpeculatedTokens
from worker.protocol.capabilities import Capability
from worker.protocol.ops import SampledReply, Sampling

Rule = Callable[[Sequence[int], Sampling], int]

VOCAB_SIZE = 50
NUM_STAGES = 3


def ruled(ids: Sequence[int], sampling: Sampling) -> int:
    """Return the token that follows: a pure function of all tokens, seed, position, penalties."""
    draw = f"{sampling.seed}@{len(ids)}" if sampling.temperature else ""
    told = f"{list(ids)}{draw}{sampling.penalty_tokens}"
    return hashlib.sha256(told.encode()).digest()[0] % VOCAB_SIZE


def recurring(surprise_every: int) -> Rule:
    """Return a rule whose texts go round, but for a surprise after every so many tokens."""

    def rule(ids: Sequence[int], sampling: Sampling) -> int:
        if len(ids) % surprise_every == 0:
            return ruled(ids, sampling)
        return ruled(ids[-2:], Sampling()) % 6

    return rule


def ruled_answer(
    prompt: Sequence[int], count: int, sampling: Sampling, rule: Rule = ruled
) -> list[int]:
    """Return what plain decoding gives."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(rule(ids, penalized(sampling, ids)))
    return ids[len(prompt) :]


def penalized(sampling: Sampling, ids: Sequence[int]) -> Sampling:
    """Return the sampling of the token after `ids`."""
    if sampling.repetition_penalty == 1:
        return sampling
    return Sampling(
        temperature=sampling.temperature,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        penalty_tokens=tuple(sorted(set(ids))),
    )


@dataclass
class Ruled:
    """A pipeline whose tokens come by a rule; passes take turns of the event loop.

    Attributes:
        prompt: ids that every text is.
        turns: how many turns of the loop the next pass takes.
        refused: tokens that it refuses to work on.
        rule: what follows.
        passes: tokens and position of each pass.
    """

    prompt: list[int]
    max_context: int | None = None
    turns: Callable[[], int] = lambda: 1
    refused: frozenset[int] = frozenset()
    fails_at: int | None = None
    ends: frozenset[int] = frozenset()
    rule: Rule = ruled
    passes: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    released: list[object] = field(default_factory=list)
    running: int = 0
    _held: list[int] = field(default_factory=list)
    _newest: asyncio.Future[None] | None = None

    @property
    def facts(self) -> Any:
        return SimpleNamespace(
            max_context=self.max_context,
            eos_token_ids=self.ends,
            vocab_size=VOCAB_SIZE,
            max_rows=16,
            ready=[None] * NUM_STAGES,
            shared_capabilities=frozenset((Capability.AS_STEPS, Capability.SAMPLE_STEPS)),
        )

    def history_bytes(self, rid: object) -> int:
        return 0

    async def tokenize(
        self, rid: object, prompt: object, messages: object, **more: object
    ) -> tuple[int, ...]:
        return tuple(self.prompt)

    async def detokenize(
        self, rid: object, tokens: Sequence[int], *, show_special: bool = False
    ) -> str:
        return "".join(chr(97 + token % 26) for token in tokens)

    async def run(self, rid: object, chunks: Sequence[Chunk], sampling: Sampling) -> SampledReply:
        tokens = [token for chunk in chunks for token in chunk.tokens]
        return (await self._rows(tokens, chunks[0].position, sampling, each=False))[-1]

    async def prefill(
        self, rid: object, tokens: Sequence[int], chunk_tokens: int, sampling: Sampling
    ) -> SampledReply:
        return await self.forward(rid, tokens, 0, sampling)

    async def forward(
        self, rid: object, tokens: Sequence[int], position: int, sampling: Sampling
    ) -> SampledReply:
        return (await self._rows(tokens, position, sampling, each=False))[-1]

    async def verify(
        self, rid: object, tokens: Sequence[int], position: int, sampling: Sampling
    ) -> tuple[SampledReply, ...]:
        return tuple(await self._rows(tokens, position, sampling, each=True))

    async def release(self, rid: object) -> None:
        assert not self.running, "released while something is under way"
        self.released.append(rid)

    async def _rows(
        self, tokens: Sequence[int], position: int, sampling: Sampling, *, each: bool
    ) -> list[SampledReply]:
        """Work on rows in the order of the calls, by the law of positions."""
        before, self._newest = self._newest, asyncio.get_running_loop().create_future()
        mine = self._newest
        self.running += 1
        self.passes.append((tuple(tokens), position))
        try:
            if before is not None:
                await asyncio.wait({before})
            is_gap = position > len(self._held)
            assert self.refused or not is_gap, "a place was left out"
            if is_gap or self.refused & set(tokens):
                raise OpRejected(0, "local", "decode_step", "bad_field", "no such token")
            self._held[position:] = tokens
            held = list(self._held)
            assert self.max_context is None or len(held) <= self.max_context
            if self.fails_at is not None and len(held) > self.fails_at:
                raise ConnectionError("lost")
            mine.set_result(None)
            for _ in range(self.turns()):
                await asyncio.sleep(0)
        finally:
            self.running -= 1
            if not mine.done():
                mine.set_result(None)
        if not each:
            return [SampledReply(token_id=self.rule(held, sampling))]
        replies = []
        for i in range(len(tokens)):
            ids = held[: position + i + 1]
            own = sampling
            if sampling.penalty_tokens is not None:
                seen = {*sampling.penalty_tokens, *tokens[1 : i + 1]}
                own = penalized(sampling, sorted(seen))
            replies.append(SampledReply(token_id=self.rule(ids, own)))
        return replies


class Told:
    """Guesses what a function says, at once or beside the passes."""

    def __init__(
        self, tell: Callable[[Sequence[int], int], Sequence[int]], *, takes_time: bool = False
    ) -> None:
        self.takes_time = takes_time
        self.closed = False
        self._tell = tell

    async def guess(self, ids: Sequence[int], num_certain: int, most: int) -> Draft:
        assert num_certain <= len(ids) and most > 0
        if self.takes_time:
            await asyncio.sleep(0)
        tokens = tuple(self._tell(ids, most))[:most]
        return Draft(tokens, (0,) * len(tokens))

    async def aclose(self) -> None:
        self.closed = True


class FreeRows(PassCosts):
    """Rows that cost nothing more: every guess is worth it."""

    def plain(self, took_s: float) -> None:
        self.plain_s = 1.0

    def surplus(self, rows: int) -> float:
        return 0.0

    def trial(self, rows: int) -> float:
        return 0.0


@dataclass
class Guessing:
    """A speculator whose requests are all guessed by one drafter."""

    pipeline: Ruled
    drafter: Drafter
    costs: PassCosts = field(default_factory=lambda: FreeRows(16, lambda: 0.0))

    def open(self, request: GenerationRequest, lease: Lease, bounds: Bounds) -> SpeculatedTokens:
        """Return the source of a request's tokens."""
        pipeline: Any = self.pipeline
        return SpeculatedTokens(pipeline, request, lease, bounds, self.drafter, self.costs)
