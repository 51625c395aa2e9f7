"""The worker's two pipes: nothing but protocol lines on stdout, and an eye always on stdin.

One thread reads stdin, so the end of the orchestrator is seen and a ping is answered while the
main thread computes. One thread writes stdout, so no line is ever cut by another one. Everything
that libraries print to fd 1 goes to stderr.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from worker.protocol.codec import MAX_LINE_BYTES, decode_ping, encode_reply
from worker.protocol.exits import ExitCode
from worker.protocol.ops import PongReply
from worker.protocol.schema import ErrorCode, ProtocolError

READ_BYTES = 1024 * 1024
# 1 MiB pipes and reads: 1.3x to 1.7x the throughput of 64 KiB pipes and 8 KiB reads at 1 MiB lines.
PIPE_BYTES = 1024 * 1024
EOF_GRACE_S = 2.0
# How long a line that nobody waits for may wait for another one to be written with.
BEHIND_S = 0.02
# How long the next line is not worked on because a reply is still to be written.
REPLY_S = 0.05
_MOST_JOINED_BYTES = 64 * 1024
_POLL_MS = 100


@dataclass(frozen=True, slots=True)
class End:
    """No more lines will be worked on."""

    reason: str
    code: int


@dataclass(frozen=True, slots=True)
class _Behind:
    """A line that need not be written by itself."""

    line: bytes


@dataclass(frozen=True, slots=True)
class _Reply:
    """A line whose op is done once it is written."""

    line: bytes


class _Last:
    """The line after which nothing is written."""

    def __init__(self, line: bytes) -> None:
        self.line = line
        self.written = threading.Event()


def take_stdio() -> tuple[int, int]:
    """Take stdin and stdout away from every library; return private descriptors of both.

    Afterwards fd 0 is empty and fd 1 is stderr, for Python, C code and child processes alike.
    Call it before anything that might print is imported.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # Closed by the parent; the lowest free one is this.
    sys.stdout.flush()
    read_fd, write_fd = os.dup(0), os.dup(1)  # Not inheritable: no child can hold the pipes open.
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    for fd in (read_fd, write_fd):
        os.set_blocking(fd, True)
        with contextlib.suppress(OSError, AttributeError):  # No pipe, or not Linux.
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_fd, write_fd


class Channel:
    """Lines in, lines out.

    Args:
        read_fd: where requests come from.
        write_fd: where replies and events go.
        on_abort: called from the thread that finds that the process must end now, whatever it is
            doing; it must end it. `PEER_GONE` with "stdout_closed" means nothing can be written.
        has_owner: end soon after stdin's end, also in the middle of an op; see `_after_eof`.
    """

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        on_abort: Callable[[End], None],
        *,
        has_owner: bool = False,
    ) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._on_abort = on_abort
        self._has_owner = has_owner
        self._lines: SimpleQueue[bytes | ProtocolError | End] = SimpleQueue()
        # SimpleQueue.put is re-entrant, so a signal handler or a finalizer may send.
        self._out: SimpleQueue[bytes | _Behind | _Reply | _Last] = SimpleQueue()
        self._replying = threading.Lock()  # Held from the time a reply is queued until it is out.
        self._stop: End | None = None
        self._busy = True  # Until the first `take` the worker is loading.
        self._closed = threading.Event()
        self.last_heard_s = time.monotonic()

    def start(self) -> None:
        """Start the reader and the writer."""
        for target in (self._write, self._read):
            threading.Thread(target=target, name=f"worker{target.__name__}", daemon=True).start()

    def send(self, line: bytes) -> None:
        """Queue one whole line; from any thread, never blocks."""
        self._out.put(line)

    def reply(self, line: bytes) -> None:
        """Queue the whole line that answers what was taken; from the thread that takes.

        The next `take` lets it be written first, for at most `REPLY_S`: where the next op ends the
        process, this one must not be blamed for it. Longer lines are written while it works.
        """
        if len(line) > _MOST_JOINED_BYTES or not self._replying.acquire(blocking=False):
            self._out.put(line)
        else:
            self._out.put(_Reply(line))

    def send_behind(self, line: bytes) -> None:
        """Queue a whole line that is written together with the next one, or within `BEHIND_S`.

        It wakes nobody up for itself at the other end, which would take as long again as a reply.
        """
        self._out.put(_Behind(line))

    def finish(self, line: bytes, timeout_s: float) -> None:
        """Write a last line after everything sent before, and nothing after it; bounded."""
        self._closed.set()  # Nobody need abort any more.
        last = _Last(line)
        self._out.put(last)
        last.written.wait(timeout_s)

    def take(self, timeout_s: float | None = None) -> bytes | ProtocolError | End:
        """Wait for the next line: its bytes, why it cannot be read, or the end.

        Raises:
            TimeoutError: none came in time.
        """
        if self._replying.acquire(timeout=REPLY_S):
            self._replying.release()
        self._busy = False
        try:
            taken = self._lines.get(timeout=timeout_s)
        except Empty:
            raise TimeoutError from None
        finally:
            self._busy = True
        return self._stop or taken

    def stop(self, end: End) -> None:
        """Let `take` return `end` before any line that still waits."""
        self._stop = self._stop or end
        self._lines.put(end)

    def _write(self) -> None:
        held: list[bytes] = []
        item: bytes | _Behind | _Reply | _Last = b""
        try:
            while not isinstance(item, _Last):
                try:
                    item = self._out.get(timeout=BEHIND_S if held else None)
                except Empty:
                    item = b""
                if isinstance(item, _Behind):
                    held.append(item.line)
                    continue
                self._write_joined(held, item if isinstance(item, bytes) else item.line)
                held = []
                if isinstance(item, _Reply):
                    self._replying.release()
        except OSError:
            self._on_abort(End("stdout_closed", ExitCode.PEER_GONE))
        else:
            item.written.set()

    def _write_joined(self, held: list[bytes], line: bytes) -> None:
        if len(line) <= _MOST_JOINED_BYTES:
            self._write_all(b"".join((*held, line)) if held else line)
            return
        self._write_all(b"".join(held))  # A long line is not copied for the sake of short ones.
        self._write_all(line)

    def _write_all(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._write_fd, rest) :]
            except BlockingIOError:
                # ssh puts O_NONBLOCK on descriptors it shares with other processes.
                select.select((), (self._write_fd,), ())

    def _read(self) -> None:
        # Own splitting and no BufferedReader: its lock, held by a blocked daemon thread, would
        # abort the interpreter when it shuts down.
        parts: list[bytes] = []
        num_bytes = 0
        while chunk := self._read_chunk():
            self.last_heard_s = time.monotonic()
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                self._line([*parts, end], num_bytes + len(end))
                parts, num_bytes = [], 0
            num_bytes += len(rest)
            # Too long: counted on to its end, but not kept.
            parts = [*parts, rest] if num_bytes <= MAX_LINE_BYTES else []
        self._line(parts, num_bytes)
        self._lines.put(End("stdin_eof", ExitCode.OK))
        self._after_eof()

    def _read_chunk(self) -> bytes:
        while True:
            try:
                return os.read(self._read_fd, READ_BYTES)
            except BlockingIOError:
                select.select((self._read_fd,), (), ())
            except OSError:
                return b""  # A terminal that hung up.

    def _line(self, parts: list[bytes], num_bytes: int) -> None:
        if num_bytes > MAX_LINE_BYTES:
            text = f"line of {num_bytes} bytes is over the limit of {MAX_LINE_BYTES}: send less"
            self._lines.put(ProtocolError(ErrorCode.BAD_JSON, text))
            return
        line = b"".join(parts)
        if not line or line.isspace():
            return
        ping = decode_ping(line)
        if ping is None:
            self._lines.put(line)
            return
        pong = PongReply(pong=True, busy=self._busy or not self._lines.empty())
        self.send(encode_reply(ping.request_id, pong))

    def _after_eof(self) -> None:
        """Watch, after stdin's end, that what is left to do still has somebody to do it for.

        A worker with an owner (`--nonce` or `--lease-s`) gets a short grace to finish. Without
        one, stdin is as likely a file of ops, so everything in it is answered, as long as the
        reader of stdout is there.
        """
        poll = select.poll()
        # Unasked come POLLERR when a pipe's reader closes, POLLHUP when a socket's peer does.
        poll.register(self._write_fd, 0)
        deadline_s = time.monotonic() + EOF_GRACE_S
        while not self._closed.is_set():
            if poll.poll(_POLL_MS) or (self._has_owner and time.monotonic() > deadline_s):
                if not self._closed.is_set():
                    self._on_abort(End("stdin_eof", ExitCode.PEER_GONE))
                return
