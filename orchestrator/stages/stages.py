"""What starts the stages, keeps them alive and ends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from orchestrator.bundle.records import NoRecorder, Recorder
from orchestrator.failures import StageFailure
from orchestrator.links.links import Links
from orchestrator.links.names import STAR
from orchestrator.recovery.crew import Crew
from orchestrator.recovery.policy import NO_RECOVERY, RecoveryPolicy
from orchestrator.recovery.spares import SpareSlot
from orchestrator.scheduler import Scheduler
from orchestrator.specs import StageSpec
from orchestrator.stage import StageStatus
from orchestrator.stages.asked import AskedStages
from orchestrator.stages.seats import Seats
from orchestrator.timeouts import Timeouts
from orchestrator.wire_encoding import AUTO
from worker.protocol.ops import Ping

_PING_ID = "stageline:alive"


class Stages(AskedStages):
    """Ordered stages; use `async with await Stages.start(…)`, or owe it an `aclose`.

    A lost stage is started again and sent what it was sent before, as the policy allows; the ops
    that wait for it notice nothing but the time.
    """

    def __init__(
        self,
        specs: Sequence[StageSpec],
        crew: Crew,
        wire_encoding: str = AUTO,
        links: str = STAR,
    ) -> None:
        seats = Seats(specs, crew, wire_encoding)
        between = Links(seats.all, links, crew.on_notice)
        scheduler = Scheduler(seats.all, crew, lambda: seats.facts, seats.encoding_of, between)
        super().__init__(seats, crew, between, scheduler)

    @staticmethod
    async def start(
        specs: Sequence[StageSpec],
        *,
        recorder: Recorder | None = None,
        timeouts: Timeouts | None = None,
        on_status: Callable[[StageStatus], None] = lambda status: None,
        policy: RecoveryPolicy = NO_RECOVERY,
        spares: Sequence[SpareSlot] = (),
        on_notice: Callable[[str], None] = lambda text: None,
        wire_encoding: str = AUTO,
        links: str = STAR,
    ) -> Stages:
        """Start every stage at once and wait until all serve.

        Args:
            specs: what to start.
            recorder: takes every fact.
            timeouts: every deadline.
            on_status: told of each stage's phases and events until all serve, then of those that
                are started again, until they serve.
            policy: how hard to try to bring a lost stage back; also while they start.
            spares: where a stage may go when its host is lost.
            on_notice: takes a line for the user for each lost stage and each that is back.
            wire_encoding: of hidden states; see `WireEncoding`.
            links: which stages hand hidden states straight on; see `Links`.

        Raises:
            StageFailure: the first that was noticed; the other stages have been ended.
            PipelineMismatch: they do not make one model, or one does not know the encoding; all
                have been ended.
        """
        crew = Crew(
            len(specs),
            recorder=recorder or NoRecorder(),
            timeouts=timeouts or Timeouts(),
            on_status=on_status,
            policy=policy,
            spares=spares,
            on_notice=on_notice,
        )
        pipeline = Stages(specs, crew, wire_encoding, links)
        try:
            await pipeline._open()
        except StageFailure as failure:
            await pipeline.aclose()
            raise (pipeline.failure or failure) from None
        except BaseException:
            await pipeline.aclose()
            raise
        return pipeline

    async def ping(self, stage: int) -> None:
        """Ask a stage whether it lives; a lost one is not brought back for that.

        Raises:
            StageFailure: it is lost at the moment, or for good.
            OpRejected, ConnectionError: see `StageClient.call`.
        """
        if (lost := self.failure or self._seats.all[stage].lost) is not None:
            raise lost
        await self._seats.all[stage].client.call(Ping(request_id=_PING_ID))

    async def revive(self, stage: int) -> None:
        """Wait until a stage serves; where it was given up, begin to bring it back again.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        await self._seats.ask(stage, Ping(request_id=_PING_ID))

    def kill(self) -> None:
        """Send SIGKILL to every stage now; `aclose` is still owed."""
        self._crew.kill()

    async def aclose(self) -> None:
        """End every stage, all at once, each by its ladder; safe to call again."""
        left = self._seats.end()
        await self._scheduler.aclose()
        await self._links.aclose()
        await self._seats.aclose(left)

    async def __aenter__(self) -> Stages:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _open(self) -> None:
        await self._seats.open()
        await self._links.open()
        self._crew.all_serve()
