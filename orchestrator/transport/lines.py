"""Lines out of a pipe: with limits of our own, and as few turns of the event loop as can be.

asyncio's StreamReader loses a line over its limit and then delivers the line's tail as if it were
one (any line over 64 KiB by default), so it is not used. Nor is its pipe transport for reading: a
buffer of 256 KiB for each read is mapped and unmapped by malloc, 14 us; one of 64 KiB is not.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO

from orchestrator.transport.arrival import ArrivalRate
from orchestrator.transport.base import LineTooLong

READ_BYTES = 64 * 1024


class LineCutter:
    """Cut what arrives into lines; the chunks of a long line are joined once."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._chunks: list[bytes] = []
        self._chunks_bytes = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that a chunk ends, each with its newline.

        Raises:
            LineTooLong: after the lines before it have been yielded; nothing may be fed then.
        """
        start = 0
        while end := data.find(b"\n", start) + 1:
            line = data[start:end]
            self._check(end - start)
            if self._chunks:
                line = b"".join((*self._chunks, line))
                self._chunks.clear()
                self._chunks_bytes = 0
            yield line
            start = end
        if start < len(data):
            self._check(len(data) - start)
            self._chunks.append(data[start:])
            self._chunks_bytes += len(data) - start

    @property
    def held_bytes(self) -> int:
        """Bytes of the line that has begun and not ended."""
        return self._chunks_bytes

    def rest(self) -> bytes:
        """Return the last line, which has no newline; b"" where there is none."""
        rest = b"".join(self._chunks)
        self._chunks.clear()
        return rest

    def _check(self, more_bytes: int) -> None:
        size_bytes = self._chunks_bytes + more_bytes
        if size_bytes > self._max_line_bytes:
            raise LineTooLong(size_bytes, self._max_line_bytes)


class LineReader:
    """Read the lines of a pipe: each as it comes, or one when it is asked for.

    What nobody takes stays in the pipe: a stage that floods its stdout is slowed down.

    Args:
        pipe: the end to read; closed by `close`.
        max_line_bytes: longer lines are an error.
    """

    def __init__(self, pipe: BinaryIO, max_line_bytes: int) -> None:
        os.set_blocking(pipe.fileno(), False)
        self.bytes_received = 0
        self.arrival = ArrivalRate()
        self._pipe = pipe
        self._cutter = LineCutter(max_line_bytes)
        self._lines: deque[bytes] = deque()  # Read together with one that was asked for.
        self._ended = False
        self._error: LineTooLong | None = None

    async def readline(self) -> bytes:
        """Return the next line with its newline, the cut last one as it is; b"" at the end.

        Raises:
            LineTooLong: after the lines before it have been returned; again at each call.
        """
        while not self._lines:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            await self._readable()
            try:
                self._ended = not self._read(self._lines.append)
            except LineTooLong as error:
                self._error = error
        return self._lines.popleft()

    async def each(self, take: Callable[[bytes], None]) -> None:
        """Hand every line to `take`, in the very turn of the event loop in which it comes.

        The cut last line is handed on as it is.

        Raises:
            LineTooLong: after the lines before it have been handed on.
            Exception: whatever `take` raises; no line comes after that.
        """
        while self._lines:
            take(self._lines.popleft())
        if self._ended:
            return
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        fd = self._pipe.fileno()

        def read() -> None:
            if ended.done():
                return
            try:
                more = self._read(take)
                # The rest of a long line is mostly there by now, and asking costs less than a turn
                # of the event loop.
                if more and self._cutter.held_bytes:
                    more = self._read(take)
                if not more:
                    loop.remove_reader(fd)
                    ended.set_result(None)
            except Exception as error:  # noqa: BLE001 - raised by `each`
                loop.remove_reader(fd)
                ended.set_exception(error)

        loop.add_reader(fd, read)
        try:
            await ended
        finally:
            loop.remove_reader(fd)

    def close(self) -> None:
        """Close the pipe; nothing may be reading it any more."""
        self._pipe.close()

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._pipe.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._pipe.fileno())

    def _read(self, take: Callable[[bytes], None]) -> bool:
        """Read once; tell whether more may come."""
        try:
            data = os.read(self._pipe.fileno(), READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        self.bytes_received += len(data)
        if not data:
            if rest := self._cutter.rest():
                take(rest)
            return False
        within = self._cutter.held_bytes
        for line in self._cutter.feed(data):
            self.arrival.end(len(line))
            within = 0
            take(line)
        if not within and (held_bytes := self._cutter.held_bytes):
            self.arrival.begin(held_bytes)
        return True


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
