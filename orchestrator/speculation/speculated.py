"""The tokens of one request with guesses verified ahead: the same tokens, in fewer round trips."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.failures import OpRejected
from orchestrator.prefixes.lease import Lease
from orchestrator.request import GenerationRequest
from orchestrator.speculation.depth import Depth
from orchestrator.speculation.drafter import Drafter
from orchestrator.speculation.drafting import Drafting
from orchestrator.speculation.pass_costs import PassCosts
from orchestrator.speculation.path import Path, Verdict
from orchestrator.stages import Stages
from orchestrator.token_source import Guesses, chosen, sampling_after
from worker.protocol.ops import SampledReply

# A caller that reads no further holds the passes up.
MOST_UNREAD = 64
_GOOD_CHANCE = 0.5


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where an answer ends.

    Attributes:
        total: tokens of prompt and answer together, at most.
        ends: tokens after which none comes.
    """

    total: int
    ends: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Flight:
    """A pass under way.

    Attributes:
        size: its rows.
        is_first: whether none was under way before it.
    """

    task: asyncio.Task[tuple[SampledReply, ...]]
    size: int
    is_first: bool
    sent_s: float


class SpeculatedTokens:
    """A `TokenSource`: a task of its own keeps passes under way and compares what comes back.

    A pass begins with the newest certain token, or behind what is being verified. Each row gives
    the token that plain decoding gives there if every token up to it is right. The first row that
    contradicts a guess has the right token; what was sent behind it is given up.

    Args:
        pipeline: the model; every stage can do `sample_steps` and go back.
        request: how to sample.
        lease: the KV caches, and how the prompt is computed.
        bounds: where the answer ends; no position past it is sent.
        drafter: guesses; closed with this.
        costs: of the pipeline.
    """

    def __init__(
        self,
        pipeline: Stages,
        request: GenerationRequest,
        lease: Lease,
        bounds: Bounds,
        drafter: Drafter,
        costs: PassCosts,
    ) -> None:
        self._pipeline = pipeline
        self._request = request
        self._lease = lease
        self._bounds = bounds
        self._num_stages = len(pipeline.facts.ready)
        self._costs = costs
        self._depth = Depth(costs, self._num_stages, bounds.total - len(lease.prompt))
        self._path = Path(lease.prompt)
        self._drafting = Drafting(drafter, self._path, bounds.total, bounds.ends)
        self._flights: deque[_Flight] = deque()
        self._is_plain = True  # whether the first flight has the stages, and this machine, alone
        self._certain_s = 0.0
        self._is_over = False
        self._given_up: set[asyncio.Task[tuple[SampledReply, ...]]] = set()
        self._unread: deque[SampledReply] = deque()
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None

    @property
    def ahead(self) -> Sequence[int]:
        """The tokens that `next` gives without waiting."""
        return [chosen(reply) for reply in self._unread]

    @property
    def guesses(self) -> Guesses:
        """What was guessed so far."""
        return Guesses(self._path.num_sent, self._path.num_right)

    @property
    def done(self) -> Sequence[int]:
        """Ids that every stage has worked on for certain."""
        # The newest certain token came out of the last stage, and has gone into none for certain.
        count = self._path.num_certain - 1
        return self._path.ids[:count] if count >= len(self._lease.prompt) else ()

    async def next(self) -> SampledReply:
        """Return the next token."""
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive())
            self._costs.num_live += 1
        while not self._unread:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        if len(self._unread) == MOST_UNREAD:
            self._changed.set()
        return self._unread.popleft()

    async def aclose(self) -> None:
        """Give up what is under way."""
        if self._driver is not None:
            self._driver.cancel()
            self._costs.num_live -= 1
            await asyncio.gather(self._driver, return_exceptions=True)
        await asyncio.gather(*self._given_up, return_exceptions=True)
        await self._drafting.aclose()

    async def _drive(self) -> None:
        try:
            lease, sampling = self._lease, sampling_after(self._request.sampling, self._path.ids)
            # A draft model reads the prompt meanwhile. Nobody books what that may cost the stages,
            # so it is done where its guesses have been worth it.
            if self._depth.may_try and self._costs.chances.of(0) >= _GOOD_CHANCE:
                self._drafting.go_on()
            self._take(await self._pipeline.run(lease.name, lease.ops, sampling))
            while not self._is_over:
                while len(self._unread) >= MOST_UNREAD:
                    self._changed.clear()
                    await self._changed.wait()
                await self._advance()
        except Exception as error:  # noqa: BLE001 - raised by `next`, after the tokens before it
            self._error = error
        finally:
            self._give_up()
            self._changed.set()

    async def _advance(self) -> None:
        """Send what is worth it, and take in what comes back first."""
        if not self._flights and not await self._send_first():
            await self._plain_pass()
            return
        # Other requests keep the stages busy as well.
        window = self._num_stages // self._costs.num_live
        while len(self._flights) < window and await self._send_behind():
            self._is_plain = False
        if self._depth.may_try and self._drafting.go_on():
            self._is_plain = False
        oldest = self._flights[0]
        late = await self._drafting.wait_beside(oldest.task)
        if late is not None:  # It came after the token, so nothing was sent behind it.
            self._depth.guessed(late)
        if oldest.task.done():
            self._land(self._flights.popleft())

    async def _plain_pass(self) -> None:
        """Do what plain decoding does, while nothing else is under way."""
        ids, sent_s = self._path.ids, time.perf_counter()
        sampling = sampling_after(self._request.sampling, ids)
        rid = self._lease.name
        reply = await self._pipeline.forward(rid, ids[-1:], len(ids) - 1, sampling)
        took_s = time.perf_counter() - sent_s
        self._depth.took(1, took_s, rows=1, is_plain=not self._drafting.is_on)
        self._take(reply)

    async def _send_first(self) -> bool:
        """Send the newest certain token with guesses; False where a plain pass does as well."""
        may_try = self._depth.may_try
        if may_try:
            await self._drafting.refresh()
        count = self._depth.first(self._path.unsent, self._most_to_come)
        if not count and not (may_try and self._drafting.takes_time):
            return False
        self._is_plain = not count and not self._drafting.is_on
        newest = self._path.ids[-1]
        self._send((newest, *self._path.send(count)))
        return True

    async def _send_behind(self) -> bool:
        """Send guesses behind those that are being verified, if they are worth it."""
        if not self._depth.may_try:
            return False
        await self._drafting.refresh()
        path = self._path
        count = self._depth.behind(path.unsent, path.unverified, self._most_to_come)
        if count:
            self._send(path.send(count))
        return count > 0

    @property
    def _most_to_come(self) -> int:
        return self._bounds.total - self._path.num_certain

    def _send(self, tokens: tuple[int, ...]) -> None:
        ids, rid = self._path.ids, self._lease.name
        position = len(ids) - len(tokens)
        sampling = sampling_after(self._request.sampling, ids[: position + 1])
        task = asyncio.create_task(self._pipeline.verify(rid, tokens, position, sampling))
        is_first = not self._flights
        self._costs.sent(len(tokens))
        self._flights.append(_Flight(task, len(tokens), is_first, time.perf_counter()))

    def _land(self, flight: _Flight) -> None:
        """Take in what a pass gave, up to the first row that contradicts a guess.

        Raises:
            OpRejected, StageFailure, ConnectionError: of a pass that is needed.
        """
        try:
            replies = flight.task.result()
        except OpRejected:
            if flight.is_first and flight.size == 1:
                raise
            # Perhaps a guess was refused, or so many rows: go on as if there had been none.
            self._drafting.stop()
            self._give_up()
            return
        now_s = time.perf_counter()
        begun_s, self._certain_s = max(flight.sent_s, self._certain_s), now_s
        is_plain = self._is_plain
        count = 0
        for reply in replies:
            count += 1
            if not self._take(reply):
                break
        self._depth.took(count, now_s - begun_s, rows=flight.size, is_plain=is_plain)
        if flight.size > 1:
            self._costs.packed(flight.size, now_s - flight.sent_s, was_first=flight.is_first)

    def _take(self, reply: SampledReply) -> bool:
        """Take a certain token; return whether the rows behind it may be right."""
        token_id = chosen(reply)
        self._unread.append(reply)
        self._changed.set()
        verdict = self._path.certify(token_id)
        is_end = token_id in self._bounds.ends or self._path.num_certain == self._bounds.total
        if is_end:
            self._is_over = True
            self._give_up()
        return self._judge(verdict) and not is_end

    def _judge(self, verdict: Verdict | None) -> bool:
        """Learn from what became of a guess; return False where it was wrong."""
        if verdict is None:
            return True
        self._depth.guessed(verdict)
        if not verdict.is_right:
            self._give_up()
        return verdict.is_right

    def _give_up(self) -> None:
        """End every pass under way and forget every guess; what was not sent never will be."""
        for flight in self._flights:
            flight.task.cancel()
            self._given_up.add(flight.task)
            flight.task.add_done_callback(self._forget)
        self._flights.clear()
        self._drafting.drop()
        self._path.drop_guesses()

    def _forget(self, task: asyncio.Task[tuple[SampledReply, ...]]) -> None:
        self._given_up.discard(task)
        if not task.cancelled():
            task.exception()  # of no interest; asyncio would complain that nobody looked
