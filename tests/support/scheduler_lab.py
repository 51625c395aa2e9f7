"""Stages without processes: a worker's handlers behind what the scheduler takes for seats."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.bundle.records import NoRecorder
from orchestrator.failures import OpRejected
from orchestrator.links.links import Links
from orchestrator.links.names import STAR
from orchestrator.pipeline_facts import PipelineFacts
from orchestrator.recovery.crew import Crew
from orchestrator.recovery.policy import NO_RECOVERY
from orchestrator.scheduler import Scheduler
from orchestrator.specs import StageSpec
from orchestrator.timeouts import Timeouts
from tests.support.history_worker import MAX_CONTEXT, NUM_LAYERS, VOCAB_SIZE, BoundaryBackend
from worker.handlers import Handlers
from worker.protocol.codec import decode_request, encode_request
from worker.protocol.encodings import Encoding
from worker.protocol.errors import ProtocolError
from worker.protocol.ops import Release, Request
from worker.protocol.roles import StageIdentity
from worker.protocol.stage import split_layers
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch


class HandlersSeat:
    """Answers the ops in the order they were sent, some turns of the event loop later.

    Args:
        stage: its index.
        num_stages: of the pipeline.
        luck: how long ops take, and which of those that go together are lost.

    Attributes:
        loses: the share of ops of several requests that are lost; the rest of the stage's loss,
            restart and replay, is not played.
        ops: the names of all ops, in order.
    """

    def __init__(self, stage: int, num_stages: int, luck: random.Random) -> None:
        self.spec = StageSpec(stage=stage, num_stages=num_stages)
        self.loses = 0.0
        self.ops: list[str] = []
        identity = StageIdentity(split_layers(NUM_LAYERS, num_stages)[stage], stage, num_stages)
        backend: Any = BoundaryBackend(identity.slice)  # takes its own caches
        self._identity = identity
        self._sessions = Sessions(backend.new_cache, 99, None, lambda rid, freed: None)
        self._handlers = Handlers(identity.slice, backend, self._sessions)
        self._luck = luck
        self._sent: asyncio.Queue[tuple[Request[Any], asyncio.Future[Any]]] = asyncio.Queue()

    async def serve(self) -> None:
        """Work until cancelled."""
        while True:
            request, future = await self._sent.get()
            for _ in range(self._luck.choice((0, 0, 1, 2, 5, 20))):
                await asyncio.sleep(0)
            self.ops.append(request.op)
            try:
                # As it would be after the wire.
                read = decode_request(encode_request(request), self._identity)
                reply: Any = self._handlers.handle(read, Stopwatch())
            except ProtocolError as error:
                reply = OpRejected(
                    self.spec.stage, self.spec.host, request.op, str(error.code), error.text
                )
            if not future.done():
                future.set_result(reply)

    async def ask(
        self,
        request: Request[Any],
        timeout_s: float | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Any:
        """Send an op and return its reply; what was sent stays sent."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._sent.put_nowait((request, future))
        reply = await future
        if isinstance(reply, OpRejected):
            raise reply
        return reply

    async def ask_once(
        self,
        request: Request[Any],
        timeout_s: float | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> Any:
        """Send an op that may get lost, before or after it was worked on."""
        lost = self._luck.random() < self.loses
        if lost and self._luck.random() < 0.5:
            return None
        reply = await self.ask(request, timeout_s)
        return None if lost else reply

    @property
    def sessions(self) -> int:
        """KV caches that it holds."""
        return self._sessions.held[1]


class Lab:
    """A scheduler over such stages."""

    def __init__(
        self, num_stages: int, luck: random.Random, *, loses: float, capabilities: Sequence[str]
    ) -> None:
        self.seats = [HandlersSeat(stage, num_stages, luck) for stage in range(num_stages)]
        for seat in self.seats:
            seat.loses = loses
        self.crew = Crew(
            num_stages,
            recorder=NoRecorder(),
            timeouts=Timeouts(),
            on_status=lambda status: None,
            policy=NO_RECOVERY,
            spares=(),
            on_notice=lambda text: None,
        )
        places: Any = self.seats
        self.facts = PipelineFacts(
            num_layers=NUM_LAYERS,
            hidden_dim=4,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=frozenset(),
            max_context=MAX_CONTEXT,
            max_rows=6,
            capabilities=frozenset(capabilities),
            shared_capabilities=frozenset(capabilities),
            needs_tokens=False,
            model_type=None,
            ready=(),
        )
        self.scheduler = Scheduler(
            places,
            self.crew,
            lambda: self.facts,
            lambda index, chunk: Encoding.BF16,
            Links(places, STAR, lambda text: None),
        )

    async def release(self, rid: str) -> None:
        """End a request as the pipeline does."""
        self.scheduler.forget(rid)
        self.crew.history.forget(rid)
        await asyncio.gather(*(seat.ask(Release(request_id=rid)) for seat in self.seats))

    def left_over(self) -> dict[str, int]:
        """Return what must be nothing once all requests are over."""
        return {
            "turns": sum(lane.steps_out + lane.chunks_out for lane in self.scheduler.lanes),
            "waiting": sum(lane.steps_here for lane in self.scheduler.lanes),
            "under way": self.scheduler.under_way,
            "sessions": sum(seat.sessions for seat in self.seats),
            "history": self.crew.history.held_bytes,
        }
