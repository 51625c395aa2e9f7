"""The turns of one stage: what waits for it here, and what it gets next."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Collection
from typing import Protocol

from orchestrator.scheduler.pace import Pace

# How often a stage that stands idle for a step sees whether one is still to come: nobody tells it
# of a request that was about to ask for one and does not.
_LOOK_S = 0.02

# The second number tells apart what has the same age.
Place = tuple[int, int, asyncio.Future[None]]


class Steps(Protocol):
    """Decode steps that wait for a stage."""

    @property
    def waiting(self) -> Collection[object]:
        """Those that wait."""

    def grant(self) -> bool:
        """Give the turn to the next one; False where none is to go at this moment."""


class Queue:
    """What waits, the oldest first.

    Attributes:
        waiting: their places, as a heap.
    """

    def __init__(self) -> None:
        self.waiting: list[Place] = []
        self._joined = itertools.count()

    def join(self, number: int) -> asyncio.Future[None]:
        """Wait from now on."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self.waiting, (number, next(self._joined), future))
        return future

    def leave(self, future: asyncio.Future[None]) -> None:
        """Wait no longer."""
        self.waiting = [place for place in self.waiting if place[-1] is not future]
        heapq.heapify(self.waiting)

    def grant(self) -> bool:
        """Give the turn to the oldest."""
        while self.waiting:
            *_, future = heapq.heappop(self.waiting)
            if not future.done():
                future.set_result(None)
                return True
        return False


class Lane:
    """Lets ops through to one stage: decode first, no more under way than its window.

    What waits, waits here and not in the worker's pipe, so that a decode step which comes later is
    still before a prefill chunk. A chunk waits for no more than `patience` ops of steps.

    Args:
        pace: of the stage.
        steps: the decode steps that wait for it.
        patience: most ops of steps that pass a waiting chunk.
        comes: seconds until the next op of steps gets here from the stages before; None: none will.

    Attributes:
        steps_out: ops of decode steps under way to it.
        chunks_out: prefill chunks under way to it.
        keeps_free: whether it stands idle for steps that come, though a chunk waits.
    """

    def __init__(
        self,
        pace: Pace,
        steps: Steps,
        *,
        patience: Callable[[], int],
        comes: Callable[[], float | None],
    ) -> None:
        self.pace = pace
        self.steps_out = self.chunks_out = 0
        self.keeps_free = False
        self._steps = steps
        self._chunks = Queue()
        self._patience = patience
        self._comes = comes
        self._passed = 0
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle_until_s: float | None = None

    @property
    def steps_here(self) -> int:
        """Ops of decode steps at this stage, waiting ones included."""
        return self.steps_out + len(self._steps.waiting)

    async def step_turn(self, number: int) -> None:
        """Wait for a turn of decode steps; `leave` is owed."""
        assert isinstance(self._steps, Queue), "another is asked for the turns of this lane"
        if not self._steps.waiting and not self._chunk_is_due and self._has_room:
            self._take_step()
            return
        await self._wait(self._steps, number, is_step=True)

    async def chunk_turn(self, number: int) -> None:
        """Wait for a turn of a prefill chunk; `leave` is owed."""
        if not self._chunks.waiting:
            self._passed = 0
        await self._wait(self._chunks, number, is_step=False)

    def leave(self, *, is_step: bool) -> None:
        """Give a turn back."""
        if is_step:
            self.steps_out -= 1
        else:
            self.chunks_out -= 1
        self.kick()

    def kick(self) -> None:
        """Let through what may go."""
        while self._steps.waiting or self._chunks.waiting:
            if not self._chunk_is_due and self._has_room and self._steps.grant():
                self._take_step()
            elif not self._chunk_may_go() or not self._chunks.grant():
                return
            else:
                self.chunks_out += 1
                self._passed = 0
                self._stop_waiting()

    def close(self) -> None:
        """Stand idle no more."""
        self._closed = True
        self._stop_waiting()

    async def _wait(self, queue: Queue, number: int, *, is_step: bool) -> None:
        future = queue.join(number)
        self.kick()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave(is_step=is_step)
            else:
                queue.leave(future)
                if not self._chunks.waiting:
                    self._stop_waiting()
                self.kick()
            raise

    def _take_step(self) -> None:
        self.steps_out += 1
        self._passed += 1

    @property
    def _has_room(self) -> bool:
        return self.steps_out + self.chunks_out < self.pace.step_window

    @property
    def _chunk_is_due(self) -> bool:
        return bool(self._chunks.waiting) and self._passed >= self._patience()

    def _chunk_may_go(self) -> bool:
        if not self._chunks.waiting or self.chunks_out >= self.pace.chunk_window:
            return False
        window = max(self.pace.step_window, self.pace.chunk_window)
        if self.steps_out + self.chunks_out >= window:
            return False
        return self._chunk_is_due or not self._keep_free()

    def _keep_free(self) -> bool:
        """Tell whether to stand idle: steps come that would wait here for most of a chunk.

        Without it a step that leaves one stage finds the next one at the chunk that left that stage
        in the same moment, and waits for a whole chunk at every stage.
        """
        comes_s = self._comes()
        limit_s = self.pace.chunk_s / 2
        if comes_s is None or comes_s >= limit_s or self._closed:
            self._stop_waiting()
            return False
        loop = asyncio.get_running_loop()
        if self._idle_until_s is None:
            self._idle_until_s = loop.time() + limit_s
        left_s = self._idle_until_s - loop.time()
        self.keeps_free = left_s > 0
        if self.keeps_free and self._timer is None:
            self._timer = loop.call_later(min(left_s, _LOOK_S), self._look)
        return self.keeps_free

    def _look(self) -> None:
        self._timer = None
        if not self._chunks.waiting:
            self._stop_waiting()  # Who waited was cancelled.
        self.kick()

    def _stop_waiting(self) -> None:
        self.keeps_free = False
        self._idle_until_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
