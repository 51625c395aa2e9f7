"""The seats of the stages in order, and what goes through several of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from orchestrator.chunk import Chunk
from orchestrator.failures import OpRejected, StageFailure
from orchestrator.pipeline_facts import PipelineFacts, facts_of
from orchestrator.recovery.crew import Crew
from orchestrator.recovery.replay import Replay
from orchestrator.recovery.seat import Seat
from orchestrator.specs import StageSpec
from orchestrator.stage.together import at_once
from orchestrator.wire_encoding import WireEncoding
from worker.protocol.ops import HiddenReply, Release, Reply, Request, RequestId
from worker.protocol.ready import Ready

R = TypeVar("R", bound=Reply)


class Seats:
    """Opened together, asked one by one, and gone through by what is replayed.

    Args:
        specs: what to start.
        crew: makes the clients and holds what was sent.
        wire_encoding: of hidden states, as it was asked for.

    Attributes:
        all: one for each stage.
    """

    def __init__(self, specs: Sequence[StageSpec], crew: Crew, wire_encoding: str) -> None:
        self._crew = crew
        self._facts: PipelineFacts | None = None
        self._asked_encoding = wire_encoding
        self._encoding: WireEncoding | None = None
        self._freeing: set[asyncio.Task[None]] = set()
        self.all = tuple(
            Seat(spec, crew, self._replay_of(index, len(specs))) for index, spec in enumerate(specs)
        )

    @property
    def facts(self) -> PipelineFacts:
        """What the stages together are, as they were when all served first."""
        assert self._facts is not None, "a pipeline that is not started has no facts"
        return self._facts

    @property
    def hosts(self) -> tuple[str, ...]:
        """The label of each stage's host, as it is now."""
        return tuple(seat.spec.host for seat in self.all)

    @property
    def ready(self) -> tuple[Ready, ...]:
        """The newest ready line of each stage."""
        return tuple(seat.ready for seat in self.all if seat.ready is not None)

    @property
    def encodings_used(self) -> tuple[str, ...]:
        """The encodings that hidden states have had on the wire so far."""
        return () if self._encoding is None else tuple(sorted(self._encoding.used))

    @property
    def failure(self) -> StageFailure | None:
        """The first failure of any stage that is not recovered: the cause of those after it."""
        return self._crew.failures[0] if self._crew.failures else None

    async def open(self) -> None:
        """Start every stage at once and wait until all serve.

        Raises:
            StageFailure, PipelineMismatch: see `Stages.start`.
        """
        await at_once(seat.open() for seat in self.all)
        self._facts = facts_of([seat.spec for seat in self.all], self.ready)
        self._encoding = WireEncoding(self._asked_encoding, self.hosts, self.ready)

    async def ask(self, index: int, request: Request[R], timeout_s: float | None = None) -> R:
        """Return a stage's reply.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        if self.failure is not None:
            raise self.failure  # not the symptom that this stage may show by now
        return await self.all[index].ask(request, timeout_s)

    async def through(
        self, rid: RequestId, chunk: Chunk, end: int, timeout_s: float | None = None
    ) -> HiddenReply:
        """Run a chunk through the stages `0:end` and return what comes out."""
        hidden = await self.ask(0, chunk.first_op(rid), timeout_s)
        self._crew.history.add(0, rid, chunk, None)
        with_tokens = self.facts.needs_tokens
        for index in range(1, end):
            encoding = self.encoding_of(index, chunk)
            request = chunk.middle_op(rid, hidden, with_tokens=with_tokens, encoding=encoding)
            given, hidden = hidden, await self.ask(index, request, timeout_s)
            self._crew.history.add(index, rid, chunk, given)
        return hidden

    def encoding_of(self, index: int, chunk: Chunk) -> str:
        """Return how a stage shall encode what it replies to a chunk."""
        assert self._encoding is not None, "a pipeline that is not started runs nothing"
        return self._encoding.of(chunk, lambda: self.all[index].client.received_bytes_s)

    async def free(self, rid: RequestId, end: int) -> None:
        """Free a KV cache on the stages `0:end` that serve."""

        async def one(seat: Seat) -> None:
            # A lost stage has no cache any more, and a refusal changes nothing for the caller.
            with contextlib.suppress(StageFailure, OpRejected, ConnectionError):
                await seat.client.call(Release(request_id=rid))

        await asyncio.gather(*(one(seat) for seat in self.all[:end] if seat.is_serving))

    def end(self) -> list[asyncio.Task[StageFailure | None]]:
        """Recover no more; return what is left of the recoveries under way, already cancelled."""
        return [task for seat in self.all if (task := seat.end()) is not None]

    async def aclose(self, left: Iterable[asyncio.Task[StageFailure | None]]) -> None:
        """Wait for what `end` left, and end every stage, all at once, each by its ladder."""
        for task in self._freeing:
            task.cancel()
        under_way: set[asyncio.Task[Any]] = {*left, *self._freeing}
        try:
            if under_way:
                await asyncio.wait(under_way)
        finally:
            await self._crew.aclose()

    def _free_replayed(self, rid: RequestId, *, end: int) -> None:
        """Forget a replay's own request and have its caches freed, in a task of the pipeline."""
        self._crew.history.forget(rid)
        task = asyncio.create_task(self.free(rid, end))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    def _replay_of(self, index: int, num_stages: int) -> Replay:
        return Replay(
            index,
            num_stages,
            self._crew.history,
            through=self.through,
            release=partial(self._free_replayed, end=index),
            facts=lambda: self.facts,
        )
