"""Lines into a pipe."""

from __future__ import annotations

import asyncio

from orchestrator.transport.base import PipeClosed


class LineWriter(asyncio.BaseProtocol):
    """Write whole lines with back-pressure; lines of several senders never mix.

    Senders that wait are let through in their order, also before those that come when there is
    room again: ops of one request may be under way at once, and a stage must get them in order.
    """

    def __init__(self) -> None:
        self._first = asyncio.Lock()  # fair; held by the one that waited for longest
        self._num_waiting = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = False
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def pause_writing(self) -> None:
        """Hold senders back: the pipe is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let senders go on."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the senders; they will raise."""
        self._lost = True
        self._writable.set()

    @property
    def bytes_unsent(self) -> int:
        """Bytes the pipe has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def has_room(self) -> bool:
        """Whether `room` returns at once."""
        return self._writable.is_set() and not self._num_waiting

    async def room(self) -> None:
        """Wait while the pipe is full.

        Raises:
            PipeClosed: the reader is gone.
        """
        self._num_waiting += 1
        try:
            async with self._first:
                await self._writable.wait()
        finally:
            self._num_waiting -= 1
        self._open()

    def write(self, line: bytes) -> None:
        """Hand over a whole line.

        Raises:
            PipeClosed: the reader is gone.
        """
        self._open().write(line)

    def _open(self) -> asyncio.WriteTransport:
        if self._lost or self._transport is None or self._transport.is_closing():
            raise PipeClosed("the process does not read its stdin any more")
        return self._transport
