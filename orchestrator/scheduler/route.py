"""The ops that take a chunk through the stages, and what is kept of each for a replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.chunk import Chunk
from orchestrator.failures import OpRejected
from orchestrator.links.links import Links
from orchestrator.links.passing import Pass, PassBroken
from orchestrator.pipeline_facts import PipelineFacts
from orchestrator.recovery.crew import Crew
from orchestrator.recovery.seat import Seat
from orchestrator.scheduler.group_pass import GroupPass
from orchestrator.scheduler.job import Job
from orchestrator.scheduler.pace import Pace
from worker.protocol.codec import ErrorReply
from worker.protocol.encodings import Encoding
from worker.protocol.errors import ProtocolError
from worker.protocol.ops import HiddenReply, Reply, Request, SampledReply, Together
from worker.protocol.together import join_requests, split_replies


class Route:
    """Sends jobs to the stage that is due, one alone or several together.

    A stage that is the whole model has two ops for each job: the layers, then the choice.

    Args:
        seats: the places of the stages.
        crew: what they share.
        facts: what the stages together are.
        encoding_of: how a stage shall encode what it replies to a chunk.
        links: which stages hand hidden states straight on.

    Attributes:
        lanes: index of the stage of each op.
        paces: of each stage.
        joins: whether steps may go together; ends with a stage that answers them wrongly.
    """

    def __init__(
        self,
        seats: Sequence[Seat],
        crew: Crew,
        facts: Callable[[], PipelineFacts],
        encoding_of: Callable[[int, Chunk], str],
        links: Links,
    ) -> None:
        self.paces = tuple(Pace() for _ in seats)
        self.joins = True
        self._seats = seats
        self._crew = crew
        self._facts = facts
        self._encoding_of = encoding_of
        self._links = links
        self._last_hop = max(len(seats) - 1, 1)
        # Behind the last op a job is still at the stage of that one.
        self.lanes = (*range(len(seats)), *[len(seats) - 1] * (self._last_hop + 2 - len(seats)))
        self._names = itertools.count()

    def advance(self, job: Job, reply: Reply) -> SampledReply | None:
        """Note that a job's op was answered; return the reply where it was the last op."""
        lane, rid = self.lanes[job.hop], job.rid
        if lane == job.hop:  # A stage that is the whole model has kept its cache in the first op.
            # What went straight from stage to stage was not seen here.
            seen = job.given if job.given is not None and job.given.hidden_b64 else None
            self._crew.history.add(lane, rid, job.chunk, seen)
        if isinstance(reply, SampledReply):
            job.move(None)
            return reply
        assert isinstance(reply, HiddenReply)
        job.move(reply)
        return None

    async def ask(self, job: Job, on_lost: Callable[[], None]) -> Reply | None:
        """Send a job's op; None where the job was sent back to the first stage meanwhile.

        Args:
            job: whose op is due.
            on_lost: told when the stage is lost and the op is to be sent again.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        self._check()
        rewinds = job.rewinds
        if job.passing is None or job.passing.end < job.hop:
            job.passing = None if job.goes_by_hub else self._begin_pass(job)
        try:
            asking = self._ask_seat(job, on_lost) if job.passing is None else self._ask_pass(job)
            reply = await asking
        except OpRejected:
            if job.rewinds == rewinds:
                raise
            return None  # What it was built on was taken from under it.
        return reply if job.rewinds == rewinds else None

    async def ask_together(self, jobs: Sequence[Job]) -> list[Reply | ErrorReply] | None:
        """Send the ops of jobs that are due at one stage, in one.

        Returns:
            The answer to each; None where the stage was lost or refused it, so that each is to be
            sent alone.

        Raises:
            StageFailure: the stage cannot be brought back.
            ConnectionError: the pipeline was closed.
        """
        self._check()
        lane = self.lanes[jobs[0].hop]
        seat, requests = self._seats[lane], [self._request(job) for job in jobs]
        together = self._joined(requests)
        self.paces[lane].sent(together, is_step=True)
        try:
            reply = await seat.ask_once(together, _timeout_s(jobs))
            self.paces[lane].answered(together)
            return None if reply is None else split_replies(requests, reply)
        except OpRejected:
            return None
        except ProtocolError as error:
            self._part(lane, error)
            return None

    def begin_group_pass(self, jobs: Sequence[Job]) -> GroupPass | None:
        """Send jobs' ops to all stages that the one that is due is linked with; None if none is."""
        first = jobs[0].hop
        if any(job.goes_by_hub for job in jobs) or (end := self._end_of_pass(jobs)) <= first:
            return None
        self._check()
        columns = [self._requests_through(job, end) for job in jobs]
        by_stage = [list(row) for row in zip(*columns, strict=True)]
        joined = [self._joined(requests) for requests in by_stage]
        limit_s = _timeout_s(jobs)
        return GroupPass(jobs, self._sent(first, joined, limit_s, is_step=True), by_stage)

    async def ask_group_pass(
        self, group: GroupPass, stage: int
    ) -> Mapping[Job, Reply | ErrorReply] | None:
        """Return what a stage answered to each job of a pass.

        None where the pass did not get through: every job is to go through the stages again.

        Raises:
            StageFailure: the stage cannot be brought back.
            ConnectionError: the pipeline was closed.
        """
        try:
            return await group.replies(stage)
        except PassBroken as broken:
            if broken.lost:
                self._links.broke(*group.stages)
        except OpRejected:
            pass
        except ProtocolError as error:
            self._part(stage, error)
        group.drop()
        return None

    def refusal(self, job: Job, error: ErrorReply) -> OpRejected:
        """Return what a part of an op that was refused means for its request."""
        seat = self._seats[self.lanes[job.hop]]
        return OpRejected(
            seat.spec.stage, seat.spec.host, self._request(job).op, error.code, error.error
        )

    def _begin_pass(self, job: Job) -> Pass | None:
        """Send the ops of all stages that the one that is due is linked with; None if none is."""
        if not self._links.are_wanted or (end := self._end_of_pass([job])) <= job.hop:
            return None
        requests = self._requests_through(job, end)
        return self._sent(job.hop, requests, job.timeout_s, is_step=job.is_step)

    def _end_of_pass(self, jobs: Sequence[Job]) -> int:
        """Return the last stage that the jobs' hidden states get to without coming here."""
        ends = [before.reach for job in jobs if (before := job.before) is not None]
        return min((self._links.end_of(jobs[0].hop), *ends))

    def _requests_through(self, job: Job, end: int) -> list[Request[Any]]:
        """Return a job's ops from the one that is due up to that of a stage; nothing links them."""
        given, requests = job.given, list[Request[Any]]()
        for hop in range(job.hop, end + 1):
            request = self._request_at(job, hop, given)
            requests.append(request)
            given = HiddenReply(
                seq_len=job.rows,
                hidden_dtype=self._facts().ready[0].hidden_dtype,
                hidden_encoding=getattr(request, "reply_encoding", Encoding.BF16.value),
                hidden_b64=b"",
            )
        return requests

    def _sent(
        self,
        first: int,
        requests: Sequence[Request[Any]],
        timeout_s: float | None,
        *,
        is_step: bool,
    ) -> Pass:
        end = first + len(requests)
        paces = self.paces[first:end]

        def answered(index: int) -> None:
            paces[index].answered(requests[index])
            # Both replies come here, one about as long under way as the other: what is between
            # them is the next stage's work and the link to it.
            if index + 1 < len(requests):
                paces[index + 1].sent(requests[index + 1], is_step=is_step)

        paces[0].sent(requests[0], is_step=is_step)
        passing = Pass(first)
        op_s = self._crew.timeouts.op_s if timeout_s is None else timeout_s
        passing.send(self._seats[first:end], requests, next(self._names), op_s, answered)
        return passing

    def _joined(self, requests: Sequence[Request[Any]]) -> Together:
        return join_requests(f"stageline:together-{next(self._names)}", requests)

    def _part(self, lane: int, error: ProtocolError) -> None:
        """Send no steps together any more: a stage answers them wrongly."""
        if self.joins:
            self._crew.on_notice(
                f"{self._seats[lane].spec.title} answers requests that are sent together wrongly "
                f"({error.text}); each is sent alone from now on"
            )
        self.joins = False

    async def _ask_seat(self, job: Job, on_lost: Callable[[], None]) -> Reply:
        lane, request = self.lanes[job.hop], self._request(job)
        self.paces[lane].sent(request, is_step=job.is_step)
        reply: Reply = await self._seats[lane].ask(request, job.timeout_s, on_lost)
        self.paces[lane].answered(request)
        return reply

    async def _ask_pass(self, job: Job) -> Reply | None:
        passing, rewinds = job.passing, job.rewinds
        assert passing is not None, "the op was sent with those of other stages"
        try:
            return await passing.reply(job.hop)
        except PassBroken as broken:
            if job.rewinds == rewinds:
                if broken.lost:
                    self._links.broke(passing.first, passing.end)
                job.rewind()
            return None

    def _request(self, job: Job) -> Request[Any]:
        return self._request_at(job, job.hop, job.given)

    def _request_at(self, job: Job, hop: int, given: HiddenReply | None) -> Request[Any]:
        chunk, rid = job.chunk, job.rid
        if hop == 0:
            return chunk.first_op(rid, self._encoding_of(0, chunk))
        assert given is not None, "a later stage is fed with hidden states"
        with_tokens = self._facts().needs_tokens
        if hop < self._last_hop:
            encoding = self._encoding_of(hop, chunk)
            return chunk.middle_op(rid, given, with_tokens=with_tokens, encoding=encoding)
        return chunk.last_op(
            rid,
            given,
            job.sampling,
            with_tokens=with_tokens,
            each=job.each,
            scoring=job.scoring,
        )

    def _check(self) -> None:
        if self._crew.failures:
            raise self._crew.failures[0]  # not the symptom that this stage may show by now


def _timeout_s(jobs: Sequence[Job]) -> float | None:
    """Return how long one op for all may take; None is the usual time."""
    limits_s = [job.timeout_s for job in jobs if job.timeout_s is not None]
    return max(limits_s) if len(limits_s) == len(jobs) else None
