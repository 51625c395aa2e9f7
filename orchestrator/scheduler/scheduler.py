"""Many requests in flight over the stages: admission, turns, groups, chunks of prompts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial

from orchestrator.chunk import Chunk, Scoring
from orchestrator.links.links import Links
from orchestrator.pipeline_facts import PipelineFacts
from orchestrator.recovery.crew import Crew
from orchestrator.recovery.seat import Seat
from orchestrator.scheduler.admission import Admission
from orchestrator.scheduler.group import Group
from orchestrator.scheduler.job import Job
from orchestrator.scheduler.lane import Lane
from orchestrator.scheduler.lanes import Lanes
from orchestrator.scheduler.prefill import run_chunks
from orchestrator.scheduler.route import Route
from worker.protocol.capabilities import Capability
from worker.protocol.events import Op
from worker.protocol.ops import RequestId, SampledReply, Sampling


class Scheduler:
    """Takes every chunk through the stages; see docs/scheduling.md.

    A caller is the task that takes its own job from stage to stage, except where several steps
    go together. So a request that is alone costs no task and no turn of the event loop more, and
    a caller that is cancelled sends nothing more.

    Args:
        seats: the places of the stages.
        crew: what they share; from now on it tells this of the stages' ops.
        facts: what the stages together are.
        encoding_of: how a stage shall encode what it replies to a chunk.
        links: which stages hand hidden states straight on.

    Attributes:
        lanes: the turns of each stage.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        crew: Crew,
        facts: Callable[[], PipelineFacts],
        encoding_of: Callable[[int, Chunk], str],
        links: Links,
    ) -> None:
        self._facts = facts
        self._route = Route(seats, crew, facts, encoding_of, links)
        self._numbers = itertools.count()
        self._newest: dict[RequestId, Job] = {}
        self._groups: set[asyncio.Task[None]] = set()
        self._admission = Admission(
            self._route.paces,
            most_rows=self._most_rows,
            send=self._send_group,
            look_again=self._look_again,
        )
        self.lanes = Lanes.of(self._route.paces, self._admission, lambda: self._admission.comes_s)
        crew.on_op = self._heard

    async def forward(
        self,
        rid: RequestId,
        chunk: Chunk,
        sampling: Sampling | None,
        *,
        each: bool = False,
        scoring: Scoring | None = None,
        timeout_s: float | None = None,
    ) -> SampledReply:
        """Run a chunk through every stage, after those of the same request that are under way.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        job = self._job(rid, chunk, sampling, each=each, scoring=scoring, timeout_s=timeout_s)
        return await self._run(job)

    async def prefill(
        self,
        rid: RequestId,
        chunks: Sequence[Chunk],
        sampling: Sampling | None,
        *,
        timeout_s: float | None = None,
    ) -> SampledReply:
        """Run chunks that follow each other, so that the stages work on several at once.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        last = chunks[-1]
        return await run_chunks(
            chunks,
            lambda one: self._job(rid, one, sampling if one is last else None, timeout_s=timeout_s),
            self._run,
            most=len(self.lanes) + 1,
        )

    @property
    def under_way(self) -> int:
        """Ops of decode steps, single or together, that have not come out of the last stage."""
        return self._admission.under_way

    @property
    def links_s(self) -> float:
        """What the links take of one pass through all stages; 0 before anything is known."""
        return sum(pace.link_s for pace in self._route.paces)

    def forget(self, rid: RequestId) -> None:
        """Hear that a request is over."""
        self._admission.presence.forget(rid)
        self.lanes[0].kick()

    async def aclose(self) -> None:
        """Send nothing more together; whoever waits goes on alone, and finds the stages closed."""
        self._admission.close()
        self.lanes.close()
        for task in self._groups:
            task.cancel()
        if self._groups:
            await asyncio.wait(self._groups)

    def _job(
        self,
        rid: RequestId,
        chunk: Chunk,
        sampling: Sampling | None,
        *,
        each: bool = False,
        scoring: Scoring | None = None,
        timeout_s: float | None,
    ) -> Job:
        job = Job(
            rid,
            chunk,
            sampling,
            each=each,
            scoring=scoring,
            timeout_s=timeout_s,
            number=next(self._numbers),
            ahead=self._newest.get(rid),
        )
        self._newest[rid] = job
        return job

    async def _run(self, job: Job) -> SampledReply:
        """Take a job through all stages; whichever way this ends, it is over then."""
        error: BaseException | None = None
        try:
            if job.ahead is not None:
                await job.follow()
            reply = await self._admitted(job) if job.is_step else None
            if reply is None:
                reply = await self._alone(job)
            if job.sampling is not None and self._newest.get(job.rid) is job:
                self._admission.presence.was_answered(job.rid)
            return reply
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._end(job, error)

    def _end(self, job: Job, error: BaseException | None) -> None:
        if self._newest.get(job.rid) is job:
            before = job.before
            if before is None:
                del self._newest[job.rid]
            else:
                self._newest[job.rid] = before
        job.end(error)
        if job.has_turn:
            self.lanes[self._route.lanes[job.turn_hop]].leave(is_step=job.is_step)
        if job.granted is not None:
            self._admission.ended(job)
        if job.is_unit:
            self._came_out()
        self.lanes.kick_idle()  # perhaps for this one

    async def _admitted(self, job: Job) -> SampledReply | None:
        """Wait for the first turn; return the answer where others carried the job through."""
        self._admission.came(job)
        self.lanes[0].kick()
        assert job.granted is not None
        return await job.granted

    async def _alone(self, job: Job) -> SampledReply:
        """Take a job through the stages from where it is."""
        route = self._route
        while True:
            lane = self.lanes[route.lanes[job.hop]]
            if not job.has_turn:
                await self._turn(job, lane)
            reply = None
            # It may have been sent back to the first stage meanwhile, or the one before it.
            if job.may_go and self.lanes[route.lanes[job.hop]] is lane:
                reply = await route.ask(job, partial(self._give_back, job, lane))
            answer = None if reply is None else route.advance(job, reply)
            if answer is not None:
                return answer
            if reply is None:
                self._give_back(job, lane)
            elif job.has_turn and self.lanes[route.lanes[job.hop]] is not lane:
                job.has_turn = False
                lane.leave(is_step=job.is_step)

    def _give_back(self, job: Job, lane: Lane) -> None:
        """Let others pass: the job has to wait for a stage to come back, or to begin anew.

        Where the stage is lost at it each time, it must not be brought back for this job alone:
        the answers that others get between show that it is the job that is wrong.
        """
        if job.has_turn:
            job.has_turn = False
            lane.leave(is_step=job.is_step)
        if job.is_unit:
            job.is_unit = False
            self._came_out()

    async def _turn(self, job: Job, lane: Lane) -> None:
        hop = job.hop
        if job.ahead is not None:
            await job.follow()
        if not job.is_step:
            await lane.chunk_turn(job.number)
        elif lane is self.lanes[0]:
            await self._admitted(job)
        else:
            await lane.step_turn(job.number)
        job.has_turn, job.turn_hop = True, hop

    def _send_group(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.is_grouped = True
        group = Group(jobs, self._route, self.lanes)
        task = asyncio.create_task(group.run())
        self._groups.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._groups.discard(task)
            group.close()  # One that was cancelled before it began has done nothing.
            self._came_out()

        task.add_done_callback(ended)

    def _came_out(self) -> None:
        self._admission.under_way -= 1
        self.lanes[0].kick()

    def _look_again(self) -> None:
        self.lanes[0].kick()

    def _heard(self, stage: int, op: Op) -> None:
        self._route.paces[stage].heard(op)

    def _most_rows(self) -> int:
        facts = self._facts()
        joins = self._route.joins and Capability.TOGETHER in facts.shared_capabilities
        return facts.max_rows if joins else 1
