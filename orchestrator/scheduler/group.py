"""Decode steps of several requests that go through the stages together."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.scheduler.job import Job
from orchestrator.scheduler.lane import Lane
from orchestrator.scheduler.route import Route
from worker.protocol.codec import ErrorReply
from worker.protocol.errors import ErrorCode


class Group:
    """Takes its jobs from stage to stage, one op for all; each caller hears of its own.

    It is taken apart where something is wrong with the op as a whole: each job goes on alone from
    where it is, and what ails one of them is found out and mended there, without the others.

    Args:
        jobs: steps of different requests, in the order of their age; the first stage's turn has
            been taken for them.
    """

    def __init__(self, jobs: Sequence[Job], route: Route, lanes: Sequence[Lane]) -> None:
        self._jobs = list(jobs)
        self._route = route
        self._lanes = lanes
        self._turn: Lane | None = lanes[0]

    async def run(self) -> None:
        """Go through all stages, or until no two jobs are left that go together."""
        try:
            while len(self._left()) > 1:
                await self._take_turn()
                for job in self._left():
                    if not job.may_go:  # The one before it was sent back to the first stage.
                        job.go_alone()
                if len(self._left()) > 1:
                    await self._hop()
        finally:
            self.close()

    def close(self) -> None:
        """Let those that are left go on alone."""
        if self._turn is not None:
            self._turn.leave(is_step=True)
            self._turn = None
        for job in self._left():
            job.go_alone()
        self._jobs.clear()

    def _left(self) -> list[Job]:
        """Return the jobs that go on together; nobody waits for one that was cancelled."""
        self._jobs = [job for job in self._jobs if job.is_carried]
        return self._jobs

    async def _take_turn(self) -> None:
        lane = self._lanes[self._route.lanes[self._jobs[0].hop]]
        if lane is self._turn:
            return
        if self._turn is not None:
            self._turn.leave(is_step=True)
            self._turn = None
        for job in self._jobs:
            try:
                await job.follow()
            except Exception as error:  # noqa: BLE001 - it is the error of the job before it.
                job.fail(error)
        await lane.step_turn(self._jobs[0].number)
        self._turn = lane

    async def _hop(self) -> None:
        jobs = list(self._jobs)
        try:
            replies = await self._route.ask_together(jobs)
        except Exception as error:  # noqa: BLE001 - each caller raises it, as if it had asked.
            for job in jobs:
                job.fail(error)
            return
        if replies is None:
            self._jobs = []
            for job in jobs:
                job.go_alone()
            return
        for job, reply in zip(jobs, replies, strict=True):
            if not job.is_carried:
                continue  # What the stage holds of it is cropped or released.
            if not isinstance(reply, ErrorReply):
                answer = self._route.advance(job, reply)
                if answer is not None:
                    job.answer(answer)
            elif reply.code == ErrorCode.NO_SESSION:
                self._jobs.remove(job)
                job.go_alone()  # There it is sent again what the worker has freed.
            else:
                job.fail(self._route.refusal(job, reply))
