"""Admission: who may generate now, who waits, who is sent away."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator

_MOST_RETRY_S = 60
# Weight of the newest answer in the mean duration.
_NEWEST = 0.2


class Busy(Exception):
    """The queue is full; one sentence.

    Attributes:
        retry_after_s: when a place may be free, as far as can be told.
    """

    def __init__(self, queue: int, retry_after_s: int) -> None:
        super().__init__(
            f"all places are taken, and so is the queue of {queue}; try again in {retry_after_s} s"
        )
        self.retry_after_s = retry_after_s


class Draining(Exception):
    """The server is shutting down; one sentence.

    Attributes:
        retry_after_s: when another server may be here.
    """

    def __init__(self, retry_after_s: int = 5) -> None:
        super().__init__("the server is shutting down; try again once it is back")
        self.retry_after_s = retry_after_s


class Desk:
    """Hands out places: one for each choice that is being generated.

    A free place goes to the client that has the fewest, in turn where several have as few, and of
    one client's to the one that came first. So a client with a hundred requests keeps another's
    first one waiting for one answer, besides those that are under way.

    Args:
        places: answers that are generated at once.
        queue: answers that may wait for a place.

    Attributes:
        is_draining: whether no place is given any more.
    """

    def __init__(self, places: int, queue: int) -> None:
        self.places = places
        self.queue = queue
        self.is_draining = False
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._mean_s: float | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Places that are taken."""
        return self._held.total()

    @property
    def queued(self) -> int:
        """Answers that wait for a place."""
        return sum(map(len, self._waiting.values()))

    @property
    def room(self) -> int:
        """Answers that can be running or waiting; more never come in together."""
        return self.places + self.queue

    @contextlib.asynccontextmanager
    async def place(self, client: str = "") -> AsyncIterator[None]:
        """Hold a place for the block, once it is `client`'s turn.

        Raises:
            Busy: the queue is full; at once.
            Draining: the server is shutting down, or began to while this waited.
        """
        await self._take(client)
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self._count(time.monotonic() - begun_s)
            self._leave(client)

    def drain(self) -> None:
        """Give no place any more; those who wait for one get `Draining`."""
        self.is_draining = True
        for waiting in self._waiting.values():
            for turn in waiting:
                if not turn.done():
                    turn.set_exception(Draining())
        self._waiting.clear()

    async def idle(self) -> None:
        """Wait until no place is taken."""
        await self._idle.wait()

    def retry_after_s(self) -> int:
        """Return in how many seconds a place may be free for one who comes now, at least 1."""
        mean_s = 1.0 if self._mean_s is None else self._mean_s
        return max(1, min(_MOST_RETRY_S, math.ceil(mean_s * (self.queued + 1) / self.places)))

    async def _take(self, client: str) -> None:
        if self.is_draining:
            raise Draining
        if self.running < self.places and not self._waiting:
            self._give(client)
            return
        if self.queued >= self.queue:
            raise Busy(self.queue, self.retry_after_s())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave(client)  # It was given a place in the moment it went away.
            else:
                self._forget(client, turn)
            raise

    def _give(self, client: str) -> None:
        self._held[client] += 1
        self._idle.clear()

    def _leave(self, client: str) -> None:
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]  # Clients come and go for weeks.
        self._call_next()
        if not self.running:
            self._idle.set()

    def _call_next(self) -> None:
        while self.running < self.places and self._waiting:
            client = min(self._waiting, key=lambda name: self._held[name])
            turn = self._waiting[client].popleft()
            # Whoever waits on goes behind the others that hold as many.
            if others := self._waiting.pop(client):
                self._waiting[client] = others
            if not turn.done():
                self._give(client)
                turn.set_result(None)

    def _forget(self, client: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(client)
        if waiting is not None and turn in waiting:
            waiting.remove(turn)
            if not waiting:
                del self._waiting[client]

    def _count(self, duration_s: float) -> None:
        old_s = duration_s if self._mean_s is None else self._mean_s
        self._mean_s = old_s + _NEWEST * (duration_s - old_s)
