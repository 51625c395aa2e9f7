"""The KV caches of a pipeline's requests: opened, kept, taken up again, freed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from orchestrator.prefixes.canon import Pieces, answers_of, canonical, cut, ops, steps
from orchestrator.prefixes.lease import Lease
from orchestrator.prefixes.openings import Openings
from orchestrator.prefixes.pool import Pool
from orchestrator.prefixes.reuse import Reuse
from orchestrator.request import GenerationRequest
from orchestrator.stages import Stages
from worker.protocol.ops import RequestId

# A stage that is busy with an op of the request frees the cache after it; a caller that gave the
# request up need not wait for that longer than this.
RELEASE_S = 5.0
# A worker holds 64 by default; a request that begins while all are in use must find room.
MOST_CACHES = 48
# Of kept caches, in multiples of the context; what a worker has no memory for, it frees itself.
MOST_CONTEXTS = 4
NO_CONTEXT_POSITIONS = 65_536


class Prefixes:
    """Opens the requests of one pipeline; an `aclose` is owed before the stages end.

    Args:
        stages: the model.
        reuse: what is wanted; see `Reuse.within`.
        most_caches: kept and used ones together.
        most_positions: of the kept ones together; None: 4 times the context.

    Attributes:
        keeps_given_up: whether a request that was given up has its caches kept as far as they
            came; else they are left as it found them.
        reuse: what is done.
        lookups: requests whose prompt was computed.
        hits: of those, the ones that began with a kept cache.
        cached_tokens: positions that were not computed again.
        prompt_tokens: of all prompts.
        evicted: kept caches that a worker had freed, so that they were computed again.
        lost: kept caches that were given up because a stage was lost.
    """

    def __init__(
        self,
        stages: Stages,
        reuse: Reuse = Reuse.TURNS,
        *,
        most_caches: int = MOST_CACHES,
        most_positions: int | None = None,
    ) -> None:
        self.lookups = self.hits = self.cached_tokens = self.prompt_tokens = 0
        self.evicted = self.lost = 0
        self.keeps_given_up = True
        self._stages = stages
        self._asked = reuse
        if most_positions is None and reuse is not Reuse.OFF:
            context = stages.facts.max_context
            most_positions = context * MOST_CONTEXTS if context else NO_CONTEXT_POSITIONS
        self._pool = Pool(most_caches, most_positions or 0)
        self._openings = Openings(self._first_messages)
        self._freeing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        kept, positions = self.held
        return (
            f"<Prefixes reuse={self.reuse.value} lookups={self.lookups} hits={self.hits} "
            f"prompt_tokens={self.prompt_tokens} cached_tokens={self.cached_tokens} "
            f"kept={kept} kept_tokens={positions}>"
        )

    @property
    def reuse(self) -> Reuse:
        """What is done, which the stages may limit."""
        if self._asked is Reuse.OFF:
            return Reuse.OFF
        return self._asked.within(self._stages.facts.shared_capabilities)

    @property
    def lack(self) -> str | None:
        """A note on what keeps the stages from what was asked for, if anything does."""
        if self.reuse is self._asked:
            return None
        missing = (
            "go back to an earlier position"
            if self.reuse is Reuse.OFF
            else "compute several decode steps in one op"
        )
        return (
            f"--prefix-reuse is {self.reuse.value} in place of {self._asked.value}: not every "
            f"stage can {missing}"
        )

    @property
    def held(self) -> tuple[int, int]:
        """How many caches are kept, and their positions."""
        return len(self._pool.idle), self._pool.positions

    async def open(self, request: GenerationRequest, prompt: Sequence[int]) -> Lease:
        """Return what a request may use; a `close` is owed.

        Args:
            request: the request.
            prompt: its ids, at least one.

        Raises:
            StageFailure, ConnectionError: see `Stages.tokenize`.
        """
        pieces = await self._pieces(request, prompt)
        self._forget_lost()
        found = None if self.reuse is Reuse.OFF else self._pool.take(pieces)
        if found is None:
            name, cached = self._pool.begin(request.request_id), 0
        else:
            name, cached = found
            self._stages.wake(name)
        self._free(self._pool.surplus())
        return Lease(
            name=name,
            prompt=tuple(prompt),
            pieces=pieces,
            ops=ops(pieces, cached),
            cached_tokens=cached,
        )

    def computed(self, lease: Lease) -> int:
        """Hear that a prompt is computed; return how many of its positions were not, as kept."""
        self.lookups += 1
        self.prompt_tokens += len(lease.prompt)
        if lease.cached_tokens and self._stages.was_rebuilt(lease.name):
            self.evicted += 1
            return 0
        self.hits += lease.cached_tokens > 0
        self.cached_tokens += lease.cached_tokens
        return lease.cached_tokens

    async def close(
        self, lease: Lease, done: Sequence[int] | None, *, given_up: bool = False
    ) -> None:
        """Keep the caches of a request, or free them.

        Args:
            lease: what it had.
            done: ids of prompt and answer that every stage has worked on, the answer's as steps;
                empty where that is not known of the whole prompt; None to free the caches.
            given_up: whether nobody wanted the rest of the answer.
        """
        if done is not None and given_up and not self.keeps_given_up:
            done = ()
        kept = None if done is None or self.reuse is Reuse.OFF else _kept(lease, done)
        if kept:
            self._stages.rest(lease.name)
            self._pool.keep(lease.name, kept)
            self._forget_lost()
            self._free(self._pool.surplus())
            return
        self._pool.drop(lease.name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._release(lease.name)

    async def aclose(self) -> None:
        """Free every kept cache; no request is open any more."""
        names = list(self._pool.idle)
        for name in names:
            self._pool.drop(name)
        self._free(names)
        if self._freeing:
            await asyncio.wait(self._freeing, timeout=RELEASE_S)
        for task in self._freeing:
            task.cancel()
        await asyncio.gather(*self._freeing, return_exceptions=True)

    async def _pieces(self, request: GenerationRequest, prompt: Sequence[int]) -> Pieces:
        answers: list[tuple[int, int]] = []
        if self.reuse is Reuse.TURNS and request.messages is not None:
            starts = await self._openings.starts(request, prompt)
            answers = answers_of(prompt, starts, self._stages.facts.eos_token_ids)
        return canonical(prompt, request.prefill_chunk, answers)

    async def _first_messages(self, request: GenerationRequest, count: int) -> tuple[int, ...]:
        return await self._stages.tokenize(
            request.request_id,
            None,
            (request.messages or ())[:count],
            tools=request.tools,
            template_options=request.template_options,
        )

    def _forget_lost(self) -> None:
        """Give up the caches that were kept while a stage was lost."""
        lost = [name for name in self._pool.idle if not self._stages.has_history(name)]
        self.lost += len(lost)
        for name in lost:
            self._pool.drop(name)
        self._free(lost)

    def _free(self, names: Sequence[RequestId]) -> None:
        for name in names:
            task = asyncio.create_task(self._release(name))
            self._freeing.add(task)
            task.add_done_callback(self._freeing.discard)

    async def _release(self, name: RequestId) -> None:
        try:
            await self._stages.release(name)
        finally:
            self._pool.end(name)


def _kept(lease: Lease, done: Sequence[int]) -> Pieces:
    """Return what the caches hold for certain, in the pieces in which it was computed."""
    if not done:
        return tuple(cut(lease.pieces, lease.cached_tokens))
    pieces = list(lease.pieces)
    answer = done[len(lease.prompt) :]
    if answer:
        pieces.append(steps(answer, len(lease.prompt)))
    return tuple(pieces)
