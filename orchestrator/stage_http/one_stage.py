"""One stage without its neighbours: asked for ops, and started again when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NoReturn, TypeVar

from orchestrator.bundle.records import NoRecorder, Recorder
from orchestrator.failures import OpRejected, StageFailure
from orchestrator.pipeline_facts import PipelineFacts
from orchestrator.recovery.crew import Crew
from orchestrator.recovery.policy import RecoveryPolicy
from orchestrator.recovery.replay import Replay
from orchestrator.recovery.seat import Seat
from orchestrator.specs import StageSpec
from orchestrator.stage import StageStatus
from orchestrator.timeouts import Timeouts
from worker.protocol.ops import Ping, Release, Reply, Request
from worker.protocol.ready import Ready
from worker.protocol.stage import StageSlice

R = TypeVar("R", bound=Reply)

_WATCH_ID = "stage-http:watch"
_HEALTH_ID = "stage-http:health"
_HEALTH_S = 5.0


class OneStage:
    """A worker with any layers of a model; owes `aclose` once `open` was called.

    A stage that is lost loses its KV caches with it: nobody here knows what they were made of.

    Args:
        spec: what to start.
        timeouts: every deadline.
        policy: how hard to try to bring it back.
        on_status: told of each phase and event while it starts; then of those of each next start.
        on_notice: takes lines for the user.
        recorder: takes every fact.
    """

    def __init__(
        self,
        spec: StageSpec,
        *,
        timeouts: Timeouts,
        policy: RecoveryPolicy,
        on_status: Callable[[StageStatus], None],
        on_notice: Callable[[str], None],
        recorder: Recorder | None = None,
    ) -> None:
        self._on_status = on_status
        self._lost = asyncio.Event()
        self._has_served = False
        self._crew = Crew(
            1,
            recorder=recorder or NoRecorder(),
            timeouts=timeouts,
            on_status=self._heed,
            policy=policy,
            spares=(),
            on_notice=on_notice,
        )
        replay = Replay(
            0,
            1,
            self._crew.history,
            through=_nothing_before,
            release=lambda rid: None,
            facts=_no_facts,
        )
        self._seat = Seat(spec, self._crew, replay)
        self._freeing: set[asyncio.Task[None]] = set()

    @property
    def ready(self) -> Ready:
        """The newest ready line."""
        assert self._seat.ready is not None, "a stage that is not started has told nothing"
        return self._seat.ready

    @property
    def layers(self) -> StageSlice:
        """Which layers it holds."""
        start, end = self.ready.layer_range
        return StageSlice(start, end, self.ready.total_blocks)

    async def open(self) -> None:
        """Start the worker and wait until it serves.

        Raises:
            StageFailure: it cannot.
        """
        await self._seat.open()
        self._has_served = True

    async def ask(self, request: Request[R]) -> R:
        """Call an op; where the stage is lost meanwhile, call it on the one that is started next.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        return await self._seat.ask(request)

    async def is_well(self) -> bool:
        """Tell whether it serves and answers at this moment."""
        if not self._seat.is_serving:
            return False
        try:
            await self._seat.client.call(Ping(request_id=_HEALTH_ID), _HEALTH_S)
        except (StageFailure, OpRejected, ConnectionError):
            return False
        return True

    def free(self, rid: str) -> None:
        """Have a KV cache freed, in a task of its own."""
        task = asyncio.create_task(self._free(rid))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def freed(self) -> None:
        """Wait until every KV cache that `free` was told of is freed."""
        await asyncio.gather(*self._freeing)

    async def watch(self) -> NoReturn:
        """Wait until it is lost for good.

        Raises:
            StageFailure: why.
        """
        while True:
            await self._lost.wait()
            self._lost.clear()
            # Asked of whatever comes in its place; answered by the failure where nothing does.
            with contextlib.suppress(OpRejected):
                await self._seat.ask(Ping(request_id=_WATCH_ID))

    def kill(self) -> None:
        """Send SIGKILL now; `aclose` is still owed."""
        self._crew.kill()

    async def aclose(self) -> None:
        """End the worker by its ladder; safe to call again."""
        left = self._seat.end()
        for task in self._freeing:
            task.cancel()
        ended = {*self._freeing, *(() if left is None else (left,))}
        try:
            if ended:
                await asyncio.wait(ended)
        finally:
            await self._crew.aclose()

    def _heed(self, status: StageStatus) -> None:
        if status.phase == "failed":
            self._lost.set()
        if not self._has_served or status.phase in ("connecting", "loading"):
            self._on_status(status)

    async def _free(self, rid: str) -> None:
        # A lost stage has no cache any more, and a refusal changes nothing for the client.
        with contextlib.suppress(StageFailure, OpRejected, ConnectionError):
            if self._seat.is_serving:
                await self._seat.client.call(Release(request_id=rid))


async def _nothing_before(*_args: object) -> NoReturn:
    raise AssertionError("nothing is replayed: the history is empty")


def _no_facts() -> PipelineFacts:
    raise AssertionError("one stage is no pipeline")
