"""Decode steps of several requests that go through the stages together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.scheduler.group_pass import GroupPass
from orchestrator.scheduler.job import Job
from orchestrator.scheduler.lane import Lane
from orchestrator.scheduler.route import Route
from worker.protocol.codec import ErrorReply
from worker.protocol.errors import ErrorCode
from worker.protocol.ops import Reply


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
        self._pass: GroupPass | None = None

    async def run(self) -> None:
        """Go through all stages, or until no two jobs are left that go together."""
        try:
            while self._goes_on():
                await self._take_turn()
                for job in self._left():
                    if not job.may_go:  # The one before it was sent back to the first stage.
                        self._send_off(job)
                if self._goes_on():
                    await self._hop()
        finally:
            self.close()

    def close(self) -> None:
        """Let those that are left go on alone."""
        if self._pass is not None:
            self._pass.drop()
            # What went straight on did not come here: they cannot go on from where they are.
            for job in self._left():
                job.rewind()
            self._pass = None
        if self._turn is not None:
            self._turn.leave(is_step=True)
            self._turn = None
        for job in self._left():
            job.go_alone()
        self._jobs.clear()

    def _goes_on(self) -> bool:
        """Whether two are left, or one whose ops have been sent to the stages ahead with others."""
        return len(self._left()) > (1 if self._pass is None else 0)

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
        jobs, hop = list(self._jobs), self._jobs[0].hop
        try:
            replies = await self._replies(jobs, hop)
        except Exception as error:  # noqa: BLE001 - each caller raises it, as if it had asked.
            for job in jobs:
                job.fail(error)
            return
        if replies is None:
            self._jobs = []
            for job in jobs:
                self._send_off(job)
            self._pass = None
            return
        for job in jobs:
            if job.is_carried:  # Of others, what the stage holds is cropped or released.
                self._take(job, replies[job])
        if self._pass is not None and hop == self._pass.stages[1]:
            self._pass = None  # What comes out of its last stage came here.

    async def _replies(
        self, jobs: Sequence[Job], hop: int
    ) -> Mapping[Job, Reply | ErrorReply] | None:
        if self._pass is None:
            self._pass = self._route.begin_group_pass(jobs)
        if self._pass is not None:
            return await self._route.ask_group_pass(self._pass, hop)
        replies = await self._route.ask_together(jobs)
        return None if replies is None else dict(zip(jobs, replies, strict=True))

    def _take(self, job: Job, reply: Reply | ErrorReply) -> None:
        if not isinstance(reply, ErrorReply):
            answer = self._route.advance(job, reply)
            if answer is not None:
                job.answer(answer)
        elif reply.code == ErrorCode.NO_SESSION:
            self._jobs.remove(job)
            self._send_off(job)  # There it is sent again what the worker has freed.
        else:
            job.fail(self._route.refusal(job, reply))

    def _send_off(self, job: Job) -> None:
        """Let a job go on alone: from where it is, or, if that did not come here, once more."""
        if self._pass is None or not job.is_carried:
            job.go_alone()
        else:
            job.rewind()
