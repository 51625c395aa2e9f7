"""The ops of one stage: many at once, or one alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from worker.protocol.ops import Request


class Turns:
    """Let ops through to a stage, and know which are on their way."""

    def __init__(self) -> None:
        self._in_flight: dict[object, Request[Any]] = {}
        self._landed = asyncio.Event()
        self._alone = asyncio.Lock()  # fair: who waits is let through in the order of coming
        self._num_waiting = 0

    def ticket_of(self, request: Request[Any] | None) -> object | None:
        """Return the ticket that this very op was let through with, or was sent under.

        What rebuilds a request's cache is sent under the ticket of the op that needs it. None:
        there is no such ticket.
        """
        if request is None:
            return None
        under = None
        for ticket, sent in self._in_flight.items():
            if sent is request:
                return ticket
            if under is None and sent.request_id == request.request_id:
                under = ticket
        return under

    def taken(self, request: Request[Any], *, alone: bool) -> AbstractAsyncContextManager[object]:
        """Wait for a turn and hold it for the block; yields a ticket.

        Args:
            request: what is to be asked.
            alone: whether no other op may be on its way meanwhile. Those that are ready to be
                sent in this moment go first.
        """
        if not alone and not self._alone.locked() and not self._num_waiting:
            return _FreeTurn(self._in_flight, self._landed, request)
        return self._waited_for(request, alone=alone)

    @contextlib.asynccontextmanager
    async def _waited_for(self, request: Request[Any], *, alone: bool) -> AsyncIterator[object]:
        if not alone:
            self._num_waiting += 1
            try:
                async with self._alone:
                    pass
            finally:
                self._num_waiting -= 1
            with self._flying(request) as ticket:
                yield ticket
            return
        await asyncio.sleep(0)
        async with self._alone:
            while self._in_flight:
                self._landed.clear()
                await self._landed.wait()
            with self._flying(request) as ticket:
                yield ticket

    @contextlib.contextmanager
    def _flying(self, request: Request[Any]) -> Iterator[object]:
        ticket = object()
        self._in_flight[ticket] = request
        try:
            yield ticket
        finally:
            del self._in_flight[ticket]
            self._landed.set()


class _FreeTurn(AbstractAsyncContextManager[object]):
    """A turn that nobody need wait for; no generator, as that would be a twentieth of an op."""

    def __init__(
        self, in_flight: dict[object, Request[Any]], landed: asyncio.Event, request: Request[Any]
    ) -> None:
        self._in_flight = in_flight
        self._landed = landed
        self._request = request

    async def __aenter__(self) -> object:
        self._in_flight[self] = self._request
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del self._in_flight[self]
        self._landed.set()
