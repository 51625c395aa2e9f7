"""One place in the pipeline: the stage that serves there now, and its recovery when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from orchestrator.failures import OpRejected, StageFailure
from orchestrator.recovery.crew import Crew
from orchestrator.recovery.replay import Replay
from orchestrator.recovery.round import Round
from orchestrator.recovery.turns import Turns
from orchestrator.recovery.words import given_up, moment_of
from orchestrator.specs import StageSpec
from orchestrator.stage import StageClient
from worker.protocol.ops import Reply, Request
from worker.protocol.ready import Ready
from worker.protocol.schema import ErrorCode

R = TypeVar("R", bound=Reply)
SeatState = Literal["ready", "recovering", "lost"]


class Seat:
    """Asks the stage that serves here; where it is lost, waits for the next one and asks again.

    A lost stage is brought back at once, also when no request wants it at that moment. Ops that
    are under way elsewhere go on meanwhile.

    Attributes:
        spec: what the stage was started from, by its newest place.
        ready: the ready line of the stage that serves or served last; None before the first.
        attempts: restarts since a stage here has answered an op.
        term: how many stages have served here so far.
    """

    def __init__(self, spec: StageSpec, crew: Crew, replay: Replay) -> None:
        self.spec = spec
        self.ready: Ready | None = None
        self.attempts = 0
        self.term = 0
        self._crew = crew
        self._replay = replay
        self._client: StageClient | None = None
        self._lost: StageFailure | None = None
        self._moment = ""
        self._round: asyncio.Task[StageFailure | None] | None = None
        self._turns = Turns()
        self._culprit: object = None
        self._closed = False

    @property
    def client(self) -> StageClient:
        """The newest stage; it may be lost."""
        assert self._client is not None, "the seat was not opened"
        return self._client

    async def open(self) -> Ready:
        """Start the stage and wait until it serves.

        Raises:
            StageFailure: it cannot, or not any more after the last restart.
        """
        client = self._client = self.hire(self.spec)
        try:
            self.ready = await client.start()
        except StageFailure:
            if not self._crew.policy.most_attempts:
                raise
            await self._serving()
        assert self.ready is not None
        return self.ready

    async def ask(
        self,
        request: Request[R],
        timeout_s: float | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> R:
        """Call an op; where the stage is lost meanwhile, call it on the one that comes after it.

        An op at which a stage is lost time and again is given up, so that it ends no more than
        its own request.

        Args:
            request: the op.
            timeout_s: for its reply.
            on_lost: told each time that the stage is lost and the op is to be called again.

        Raises:
            OpRejected: the worker refused the op and serves on.
            StageFailure: the stage is lost for now; the next op tries again to bring it back.
            ConnectionError: the pipeline was closed.
        """
        lost_at_it, evicted = 0, False
        while True:
            client = await self._serving()
            # An op that may cost the stage again must not cost the others theirs; and a cache that
            # is rebuilt must not be freed by another op before it is used.
            alone = evicted or lost_at_it > 0
            async with self._turns.taken(request, alone=alone) as ticket:
                try:
                    if evicted:
                        await self._replay.one(request.request_id, client)
                    reply = await client.call(request, timeout_s)
                except StageFailure as failure:
                    lost_at_it += ticket is self._culprit
                    self._check_hope(client, failure, lost_at_it)
                    on_lost()
                    evicted = False
                    continue
                except OpRejected as rejected:
                    if evicted or not self._was_evicted(request, rejected):
                        raise
                    evicted = True
                    self._crew.history.note_rebuilt(request.request_id)
                    continue
            self.attempts = 0
            return reply

    async def ask_once(
        self,
        request: Request[R],
        timeout_s: float | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> R | None:
        """Call an op that is not to be called again; None where the stage was lost meanwhile.

        Args:
            request: the op.
            timeout_s: for its reply.
            on_sent: told when it is on its way.

        Raises:
            OpRejected: the worker refused the op and serves on.
            StageFailure: the stage could not be brought back before.
            ConnectionError: the pipeline was closed.
        """
        client = await self._serving()
        async with self._turns.taken(request, alone=False):
            try:
                reply = await client.call(request, timeout_s, on_sent)
            except StageFailure:
                return None
        self.attempts = 0
        return reply

    def end(self) -> asyncio.Task[StageFailure | None] | None:
        """Recover no more; return what is left of a recovery under way, already cancelled."""
        self._closed = True
        if self._round is not None:
            self._round.cancel()
        return self._round

    @property
    def is_serving(self) -> bool:
        """Whether a stage serves here at this moment."""
        return self._lost is None and self.ready is not None

    @property
    def state(self) -> SeatState:
        """Whether a stage serves here, is being brought back, or neither."""
        if self._round is not None:
            return "recovering"
        is_lost = self._client is not None and self._client.failure is not None
        return "ready" if self.is_serving and not is_lost else "lost"

    @property
    def lost(self) -> StageFailure | None:
        """Why no stage serves here at this moment, if none does."""
        return self._lost

    def take(self, client: StageClient, spec: StageSpec, ready: Ready) -> None:
        """Seat a stage that has been brought back.

        Raises:
            StageFailure: it was lost in this moment.
        """
        if client.failure is not None:
            raise client.failure
        self._client, self.spec, self.ready, self._lost = client, spec, ready, None
        self.term += 1

    def hire(self, spec: StageSpec) -> StageClient:
        """Make a client for another try; its failure counts once it is seated."""
        client = self._crew.hire(spec, lambda *told: self._failed(client, *told))
        return client

    async def _serving(self) -> StageClient:
        """Return the stage that serves, once it does.

        Raises:
            StageFailure: it could not be brought back.
            ConnectionError: the pipeline was closed.
        """
        while True:
            if self._round is None and self._lost is not None:
                self._begin(self._lost)
            waiting = self._round
            if self._closed:
                raise ConnectionError(f"stage {self.spec.stage} on {self.spec.host} is closed")
            if waiting is None:
                return self.client
            await asyncio.wait({waiting})
            failure = None if waiting.cancelled() else waiting.result()
            if failure is not None:
                raise failure

    def _check_hope(self, client: StageClient, failure: StageFailure, lost_at_it: int) -> None:
        """Raise the failure unless another stage takes this one's place and may do better."""
        if self._closed or (self._round is None and client is self._client):
            raise failure
        most = self._crew.policy.most_attempts
        if lost_at_it > most:
            raise given_up(failure, failure, most, made=0) from None

    def _was_evicted(self, request: Request[Any], rejected: OpRejected) -> bool:
        """Whether the worker has freed a cache that it had been given."""
        entries = self._crew.history.entries(self.spec.stage, request.request_id)
        return rejected.code == ErrorCode.NO_SESSION and bool(entries)

    def _failed(
        self, client: StageClient, failure: StageFailure, request: Request[Any] | None
    ) -> None:
        """Hear that a client is lost, from the event loop.

        A worker takes ops one after another, so it is lost at the oldest that has no answer.
        """
        if self._closed or client is not self._client:
            return
        self._culprit = self._turns.ticket_of(request)
        if not self._crew.policy.most_attempts:
            self._crew.fail(failure)
            return
        self._lost = failure
        self._crew.history.forget_resting()
        answers = bool(self._crew.history.rids(self.spec.stage))
        self._moment = moment_of(failure, request, answers=answers)
        self._begin(failure)

    def _begin(self, failure: StageFailure) -> None:
        if self._closed:
            return
        work = Round(self, self._crew, self._replay, failure, self._moment)
        self._round = asyncio.create_task(work.run())
        self._round.add_done_callback(self._end_round)

    def _end_round(self, ended: asyncio.Task[StageFailure | None]) -> None:
        if self._round is ended:  # else the stage was lost again in the moment it was back
            self._round = None
