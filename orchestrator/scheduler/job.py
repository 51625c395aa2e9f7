"""One chunk of one request on its way through the stages."""

from __future__ import annotations

import asyncio

from orchestrator.chunk import Chunk, Scoring
from orchestrator.links.passing import Pass
from worker.protocol.ops import HiddenReply, RequestId, SampledReply, Sampling


class Job:
    """What was asked, and how far it has come.

    The jobs of one request follow each other: a stage gets one of them at a time, in their order.
    So a stage that is lost is sent them again in that order, and positions never mix.

    Args:
        rid: of its request.
        chunk: what to run.
        sampling: how to choose a token; None chooses none.
        each: whether to choose one after each row.
        scoring: tokens to be scored; a replay does without.
        timeout_s: for each op.
        number: its age; those made later have higher ones.
        ahead: the job of the same request that was made before it, while that is on its way.

    Attributes:
        hop: index of the op that is due next.
        given: hidden states for that op; None before the first.
        has_turn: whether it holds the turn of the stage of that op.
        is_unit: whether it counts as one that is under way, and no group does so for it.
        goes_alone: whether it is not to go together with others any more.
        granted: ends the wait for its first turn: with its answer where others carried it through,
            with None where it is to go on alone.
        ended: whether nobody waits for it any more.
        error: why it was not answered.
        passing: its ops that were sent to linked stages together, if any.
        goes_by_hub: whether it is not to go over links any more.
        is_grouped: whether others may carry it through.
        rewinds: how often it was sent back to the first stage.
        turn_hop: index of an op of the stage whose turn it holds, where it holds one.
    """

    __slots__ = (
        "_behind",
        "_moved",
        "ahead",
        "chunk",
        "each",
        "ended",
        "error",
        "given",
        "goes_alone",
        "goes_by_hub",
        "granted",
        "has_turn",
        "hop",
        "is_grouped",
        "is_step",
        "is_unit",
        "number",
        "passing",
        "rewinds",
        "rid",
        "sampling",
        "scoring",
        "timeout_s",
        "turn_hop",
    )

    def __init__(
        self,
        rid: RequestId,
        chunk: Chunk,
        sampling: Sampling | None,
        *,
        each: bool,
        scoring: Scoring | None = None,
        timeout_s: float | None,
        number: int,
        ahead: Job | None,
    ) -> None:
        self.rid = rid
        self.chunk = chunk
        self.sampling = sampling
        self.each = each
        self.scoring = scoring
        self.timeout_s = timeout_s
        self.number = number
        self.ahead = ahead
        self.is_step = chunk.is_step
        self.hop = 0
        self.given: HiddenReply | None = None
        self.has_turn = self.is_unit = self.goes_alone = False
        self.granted: asyncio.Future[SampledReply | None] | None = None
        self.ended = False
        self.error: BaseException | None = None
        self.passing: Pass | None = None
        self.goes_by_hub = self.is_grouped = False
        self.rewinds = self.turn_hop = 0
        self._behind: Job | None = None
        if ahead is not None:
            ahead._behind = self
        self._moved: asyncio.Event | None = None

    @property
    def rows(self) -> int:
        """Rows that its op has."""
        return len(self.chunk.tokens)

    @property
    def may_go(self) -> bool:
        """Whether the job before it, if any, has been answered by the stage that is due."""
        before = self.before
        return before is None or before.hop > self.hop

    @property
    def before(self) -> Job | None:
        """The job of the same request that is on its way and was made last before this one."""
        ahead = self.ahead
        while ahead is not None and ahead.ended:
            ahead = ahead.ahead
        return ahead

    @property
    def is_carried(self) -> bool:
        """Whether others carry it through, and its caller waits for that."""
        return self.is_grouped and self.awaits_grant

    @property
    def reach(self) -> int:
        """The last op that was sent; the stages that follow must not get another job before."""
        return self.hop - 1 if self.passing is None else max(self.passing.end, self.hop - 1)

    @property
    def awaits_grant(self) -> bool:
        """Whether its caller still waits to be told how it goes on."""
        return self.granted is not None and not self.granted.done()

    def move(self, given: HiddenReply | None) -> None:
        """Go on to the next op with what the stage has answered."""
        self.hop += 1
        self.given = given
        if self._moved is not None:
            self._moved.set()

    def rewind(self) -> None:
        """Go through the stages again from the first one, this time by way of here.

        So do those behind it: what a stage keeps of them ends where this one begins again.
        """
        self.goes_by_hub = True
        job: Job | None = self
        while job is not None:
            if not job.ended:
                job._go_back()
            job = job._behind

    def _go_back(self) -> None:
        self.rewinds += 1
        self.hop, self.given = 0, None
        if self.passing is not None:
            self.passing.drop()
            self.passing = None
        if self.is_grouped:
            self.go_alone()

    def end(self, error: BaseException | None = None) -> None:
        """Let those behind it pass."""
        self.ended, self.error = True, error
        if error is None:
            self.ahead = None  # Else those behind it follow that one now.
        if self.passing is not None:
            self.passing.drop()
        if self._moved is not None:
            self._moved.set()

    async def passed(self, hop: int) -> None:
        """Wait until it needs no turn for that op any more."""
        while self.hop <= hop and not self.ended:
            if self._moved is None:
                self._moved = asyncio.Event()
            self._moved.clear()
            await self._moved.wait()

    async def follow(self) -> None:
        """Wait until the job before it has been answered by the stage that is due.

        Raises:
            OpRejected, StageFailure, ConnectionError: that one failed, and this one builds on it.
        """
        while (ahead := self.ahead) is not None:
            await ahead.passed(self.hop)
            if not ahead.ended:
                return
            self.ahead = ahead.ahead
            if isinstance(ahead.error, Exception) and ahead.chunk.end <= self.chunk.position:
                raise ahead.error

    def go_alone(self) -> None:
        """Tell its caller to go on with it, from where it is, and for good."""
        self.goes_alone, self.is_grouped = True, False
        if self.granted is not None and not self.granted.done():
            self.granted.set_result(None)

    def answer(self, reply: SampledReply) -> None:
        """Give its caller the answer."""
        if self.granted is not None and not self.granted.done():
            self.granted.set_result(reply)

    def fail(self, error: Exception) -> None:
        """Give its caller the error."""
        if self.granted is not None and not self.granted.done():
            self.granted.set_exception(error)
