"""Lines out of a pipe, lines into a pipe: asyncio protocols with limits of our own.

asyncio's StreamReader loses a line over its limit and then delivers the line's tail as if it were
one (any line over 64 KiB by default), so it is not used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from orchestrator.transport.base import LineTooLong, PipeClosed

# Whole lines that nobody has taken yet; above this the pipe is not read, so that a stage that
# floods its stdout is slowed down and does not fill our memory.
WAITING_LIMIT_BYTES = 8 * 1024 * 1024


class ChunkLines(asyncio.Protocol):
    """Split what arrives into lines; the chunks of a long line are joined once."""

    def __init__(self, max_line_bytes: int) -> None:
        self.bytes_received = 0
        self._max_line_bytes = max_line_bytes
        self._chunks: list[bytes] = []
        self._chunks_bytes = 0
        self._lines: deque[bytes] = deque()
        self._lines_bytes = 0
        self._error: LineTooLong | None = None
        self._ended = False
        self._paused = False
        self._news = asyncio.Event()
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, for flow control."""
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take a chunk."""
        self.bytes_received += len(data)
        start = 0
        while self._error is None:
            end = data.find(b"\n", start)
            if end < 0:
                self._keep(data[start:] if start else data)
                break
            self._keep(data[start : end + 1])
            if self._error is None:
                self._finish_line()
            start = end + 1
        self._news.set()
        if self._lines_bytes > WAITING_LIMIT_BYTES or self._error is not None:
            self._pause()

    def connection_lost(self, exc: Exception | None) -> None:
        """Deliver the cut last line, then the end."""
        if self._chunks and self._error is None:
            self._finish_line()
        self._ended = True
        self._news.set()

    async def readline(self) -> bytes:
        """Return the next line with its newline; b"" at the end.

        Raises:
            LineTooLong: after the lines before it have been returned; again at each call.
        """
        while not self._lines:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            self._resume()
            self._news.clear()
            await self._news.wait()
        line = self._lines.popleft()
        self._lines_bytes -= len(line)
        return line

    def _keep(self, chunk: bytes) -> None:
        if not chunk:
            return
        self._chunks_bytes += len(chunk)
        if self._chunks_bytes > self._max_line_bytes:
            self._error = LineTooLong(self._chunks_bytes, self._max_line_bytes)
            self._chunks.clear()
        else:
            self._chunks.append(chunk)

    def _finish_line(self) -> None:
        line = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._chunks_bytes = 0
        self._lines.append(line)
        self._lines_bytes += len(line)

    def _pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.resume_reading()


class Drain(asyncio.Protocol):
    """Hand every chunk to a callback at once: a full stderr pipe would stop the process."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self.bytes_received = 0
        self.ended = asyncio.Event()
        self._sink = sink

    def data_received(self, data: bytes) -> None:
        """Take a chunk."""
        self.bytes_received += len(data)
        self._sink(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that nothing more will come."""
        self.ended.set()


class LineWriter(asyncio.BaseProtocol):
    """Write whole lines with back-pressure; lines of several senders never mix."""

    def __init__(self) -> None:
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
        return self._writable.is_set()

    async def room(self) -> None:
        """Wait while the pipe is full.

        Raises:
            PipeClosed: the reader is gone.
        """
        await self._writable.wait()
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
