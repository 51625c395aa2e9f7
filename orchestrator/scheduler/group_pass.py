"""The ops of several jobs on stages that are linked: one for all of them on each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.links.passing import Pass, PassBroken
from orchestrator.scheduler.job import Job
from worker.protocol.codec import ErrorReply
from worker.protocol.ops import Reply, Request, TogetherReply
from worker.protocol.together import split_replies


class GroupPass:
    """Tells each job what a stage answered it; all ops were sent when this was made.

    A job that is given up meanwhile is worked on all the same, as nothing calls an op back.

    Args:
        jobs: in the order of their requests.
        passing: the ops.
        requests: what was joined for each stage.
    """

    def __init__(
        self, jobs: Sequence[Job], passing: Pass, requests: Sequence[Sequence[Request[Any]]]
    ) -> None:
        self._jobs = tuple(jobs)
        self._passing = passing
        self._requests = requests

    @property
    def stages(self) -> tuple[int, int]:
        """The first and the last stage."""
        return self._passing.first, self._passing.end

    async def replies(self, stage: int) -> Mapping[Job, Reply | ErrorReply]:
        """Return what a stage answered to each.

        Raises:
            PassBroken: it is lost, or has nothing to work on.
            OpRejected: it refuses the op as a whole.
            ProtocolError: it breaks the protocol.
            StageFailure, ConnectionError: see `Seat.ask_once`.
        """
        reply = await self._passing.reply(stage)
        if not isinstance(reply, TogetherReply):
            raise PassBroken(lost=True)
        parts = split_replies(self._requests[stage - self._passing.first], reply)
        return dict(zip(self._jobs, parts, strict=True))

    def drop(self) -> None:
        """Wait for no answer any more."""
        self._passing.drop()
