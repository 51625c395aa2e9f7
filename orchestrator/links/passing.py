"""One chunk's ops on stages that are linked: all sent at once, each answered on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator.failures import OpRejected
from orchestrator.recovery.seat import Seat
from worker.protocol.errors import ErrorCode
from worker.protocol.ops import Reply, Request

# What going by way of the orchestrator mends: there a cache that was freed is built again, too.
_MENDED = (ErrorCode.LINK_LOST, ErrorCode.NO_SESSION)


class PassBroken(Exception):
    """The chunk did not get through, or is not wanted to any more.

    Args:
        lost: whether a link or a stage was.
    """

    def __init__(self, *, lost: bool) -> None:
        super().__init__("a pass over links did not get through")
        self.lost = lost


class Pass:
    """Sends the ops of stages that follow each other, in their order.

    None is sent before the one whose hidden states it waits for: where the pass is dropped in
    between, because a pipe is full or a stage has no turn, a stage would wait for them for ever.

    An answer that nobody has read when its stage is lost counts for nothing: the stage that comes
    back is sent again what was read, and would lack this chunk.

    Args:
        first: the first stage.

    Attributes:
        end: the last stage, whose reply has hidden states or a token again.
    """

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        self._seats: tuple[Seat, ...] = ()
        self._terms: list[int] = []
        self._tasks: list[asyncio.Task[Reply | None]] = []

    def send(
        self,
        seats: Sequence[Seat],
        requests: Sequence[Request[Any]],
        ticket: int,
        op_s: float,
        on_answered: Callable[[int], None],
    ) -> None:
        """Send the ops.

        Args:
            seats: of the stages, in order.
            requests: an op for each.
            ticket: what the hidden states are called on the links.
            op_s: how long each may work; the later ones wait for those before.
            on_answered: told when a stage has answered, with its index among them.
        """
        self.end = self.first + len(requests) - 1
        self._seats = tuple(seats)
        self._terms = [seat.term for seat in seats]
        before: asyncio.Event | None = None
        for i, (seat, request) in enumerate(zip(seats, requests, strict=True)):
            linked: Any = request
            if i > 0:
                linked = replace(linked, take_link=ticket)
            if i < len(requests) - 1:
                linked = replace(linked, give_link=ticket)
            sent = asyncio.Event()
            task = asyncio.create_task(_ask_after(before, sent, seat, linked, op_s * (i + 1)))
            task.add_done_callback(_look_at)
            task.add_done_callback(partial(lambda index, task: on_answered(index), i))
            self._tasks.append(task)
            before = sent

    async def reply(self, stage: int) -> Reply:
        """Return what a stage answered.

        Raises:
            PassBroken: it is lost, or has nothing to work on; or the pass was dropped.
            OpRejected: it refuses the op.
            StageFailure, ConnectionError: see `Seat.ask_once`.
        """
        at = stage - self.first
        task, seat = self._tasks[at], self._seats[at]
        await asyncio.wait({task})
        if task.cancelled():
            raise PassBroken(lost=False)
        try:
            reply = task.result()
        except OpRejected as rejected:
            if rejected.code in _MENDED:
                raise PassBroken(lost=rejected.code == ErrorCode.LINK_LOST) from None
            raise
        if reply is None or not seat.is_serving or seat.term != self._terms[at]:
            raise PassBroken(lost=True)
        return reply

    def drop(self) -> None:
        """Wait for no answer any more."""
        for task in self._tasks:
            task.cancel()


async def _ask_after(
    before: asyncio.Event | None,
    sent: asyncio.Event,
    seat: Seat,
    request: Request[Any],
    timeout_s: float,
) -> Reply | None:
    """Ask a stage once the op before is on its way; tell when this one is."""
    if before is not None:
        await before.wait()
    reply: Reply | None = await seat.ask_once(request, timeout_s, sent.set)
    return reply


def _look_at(task: asyncio.Task[Reply | None]) -> None:
    """Have it known that the error is not lost, where nobody waits for it any more."""
    if not task.cancelled():
        task.exception()
