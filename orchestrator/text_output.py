"""Text to stdout, without making the event loop wait for whoever reads it."""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import signal
import stat
import sys
import threading
from dataclasses import dataclass

from orchestrator.interruption import Interrupted


class OutputClosed(Exception):
    """Nobody reads stdout any more, as after `| head`."""


class OutputFailed(Exception):
    """stdout cannot be written; one sentence."""


@dataclass(frozen=True, slots=True)
class _Piece:
    data: bytes
    written: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop


class TextOutput:
    """Write text to a file descriptor, each piece at once.

    A pager that is not scrolled fills the pipe. A thread waits for it, so that pings go on and
    no stage takes this program for dead.

    Args:
        fd: where to write; None writes nowhere (a program started with stdout closed).
        encoding: of the text; what it cannot express becomes `?`.
    """

    def __init__(self, fd: int | None, encoding: str = "utf-8") -> None:
        self._fd = fd
        self._encoding = encoding
        self._pieces: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @staticmethod
    def stdout() -> TextOutput:
        """Return the output to this program's stdout."""
        return TextOutput(stdout_fd(), getattr(sys.stdout, "encoding", None) or "utf-8")

    async def write(self, text: str) -> None:
        """Write a piece of text and wait until the system has taken it.

        Raises:
            OutputClosed: the reader is gone.
            OutputFailed: the disk is full, for example.
            Interrupted: the terminal has gone.
        """
        if self._fd is None or not text:
            return
        if self._thread is None:
            # Written with os.write and not through sys.stdout: the interpreter would wait at its
            # end for the lock of a buffer that a daemon thread holds.
            self._thread = threading.Thread(target=self._work, name="stdout", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        piece = _Piece(text.encode(self._encoding, "replace"), loop.create_future(), loop)
        self._pieces.put(piece)
        await piece.written

    def close(self, wait_s: float = 1.0) -> None:
        """End the thread; one that is stuck in a full pipe is left to the end of the process."""
        if self._thread is not None:
            self._pieces.put(None)
            self._thread.join(wait_s)

    def _work(self) -> None:
        assert self._fd is not None
        while (piece := self._pieces.get()) is not None:
            error = write_all(self._fd, piece.data)
            try:
                piece.loop.call_soon_threadsafe(_settle, piece.written, error)
            except RuntimeError:
                return  # The loop is closed: nobody waits for this piece any more.


def stdout_fd() -> int | None:
    """Return the descriptor of stdout; None where the program was started with it closed."""
    try:
        return None if sys.stdout is None else sys.stdout.fileno()
    except (OSError, ValueError):
        return None


def write_all(fd: int, data: bytes) -> Exception | None:
    """Write every byte; return what went wrong.

    OutputClosed, OutputFailed, or Interrupted by SIGHUP where the terminal has gone: its signal
    may come later than the error of a write to it. None: nothing went wrong.
    """
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.ECONNRESET):
            return OutputClosed("nobody reads stdout any more")
        # Once a terminal has gone, isatty() denies that it is one.
        if error.errno == errno.EIO and stat.S_ISCHR(os.fstat(fd).st_mode):
            return Interrupted(signal.SIGHUP)
        return OutputFailed(f"cannot write the answer to stdout: {error.strerror}")
    return None


def _settle(written: asyncio.Future[None], error: Exception | None) -> None:
    if written.done():
        return  # Cancelled meanwhile.
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
