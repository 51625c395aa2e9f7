"""What can be told of the stages without asking them."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.bundle.records import RecoveryRecord
from orchestrator.failures import StageFailure
from orchestrator.links.links import Links
from orchestrator.pipeline_facts import PipelineFacts
from orchestrator.recovery.crew import Crew
from orchestrator.recovery.seat import SeatState
from orchestrator.scheduler import Scheduler
from orchestrator.stage import StageClient
from orchestrator.stages.seats import Seats
from worker.protocol.ops import RequestId
from worker.protocol.ready import Ready


class ToldStages:
    """Shows how the stages are, and what they hold of each request."""

    def __init__(self, seats: Seats, crew: Crew, links: Links, scheduler: Scheduler) -> None:
        self._seats = seats
        self._crew = crew
        self._links = links
        self._scheduler = scheduler

    @property
    def facts(self) -> PipelineFacts:
        """What the stages together are, as they were when all served first."""
        return self._seats.facts

    @property
    def stages(self) -> tuple[StageClient, ...]:
        """The newest stage of each place."""
        return tuple(seat.client for seat in self._seats.all)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The label of each stage's host, as it is now."""
        return self._seats.hosts

    @property
    def ready(self) -> tuple[Ready, ...]:
        """The newest ready line of each stage."""
        return self._seats.ready

    @property
    def states(self) -> tuple[SeatState, ...]:
        """Whether each stage serves, is being brought back, or neither."""
        return tuple(seat.state for seat in self._seats.all)

    @property
    def encodings_used(self) -> tuple[str, ...]:
        """The encodings that hidden states have had on the wire so far."""
        return self._seats.encodings_used

    @property
    def links_live(self) -> tuple[bool, ...]:
        """For each stage but the last, whether it hands hidden states straight on."""
        return self._links.live

    @property
    def failure(self) -> StageFailure | None:
        """The first failure of any stage that is not recovered: the cause of those after it."""
        return self._seats.failure

    @property
    def recoveries(self) -> Sequence[RecoveryRecord]:
        """Every attempt to bring a stage back, in the order of their ends."""
        return self._crew.recoveries

    @property
    def peak_history_bytes(self) -> int:
        """The most hidden states that were ever held for replay."""
        return self._crew.history.peak_bytes

    @property
    def links_s(self) -> float:
        """What the links take of one pass through all stages, as far as is known."""
        return self._scheduler.links_s

    def history_bytes(self, rid: RequestId) -> int:
        """Return the hidden states that are held of a request for replay."""
        return self._crew.history.bytes_of(rid)

    def has_history(self, rid: RequestId) -> bool:
        """Tell whether a request that rests can be gone on with: no stage was lost meanwhile."""
        return self._crew.history.has(rid)

    def was_rebuilt(self, rid: RequestId) -> bool:
        """Tell whether a stage had freed its KV cache of a request, since it was woken."""
        return self._crew.history.was_rebuilt(rid)
