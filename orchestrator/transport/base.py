"""What a stage's process is to the rest of the orchestrator, whichever way it was started."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class PipeClosed(ConnectionError):
    """The process does not read its stdin any more."""


class LineTooLong(ValueError):
    """The process wrote a line over the limit; nothing after it can be trusted."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"a line of more than {size_bytes} bytes is over the {limit_bytes} limit")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class SpawnError(OSError):
    """The launching program could not be started; the text is a verb phrase for a sentence."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: with a code, or by a signal. Both None: it was never reaped."""

    code: int | None
    signal: str | None = None

    @staticmethod
    def of(returncode: int) -> ExitStatus:
        """Read a return code; shells, and the worker itself, report signal n as 128 + n."""
        if returncode < 0:
            return ExitStatus(None, signal_name(-returncode))
        if 128 < returncode < 128 + signal.NSIG:
            return ExitStatus(returncode, signal_name(returncode - 128))
        return ExitStatus(returncode)

    def __str__(self) -> str:
        if self.signal is not None:
            return self.signal
        return "unknown" if self.code is None else f"exit code {self.code}"


def signal_name(number: int) -> str:
    """Return the name of a signal, `signal 64` where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True, slots=True)
class Launch:
    """A command to run here.

    Attributes:
        host: label for people.
        argv: the local command.
        kind: "local", "ssh" or "command".
    """

    host: str
    argv: tuple[str, ...]
    kind: str


class StageProcess(Protocol):
    """A running process with line pipes.

    stdout is read by `readline` or `each_line`, stderr is always drained into the callback given
    at the start. `bytes_received` and `bytes_unsent` move as long as the link moves, also within
    one long line.
    """

    host: str
    pid: int

    @property
    def bytes_received(self) -> int:
        """Bytes of stdout and stderr so far."""

    @property
    def received_bytes_s(self) -> float | None:
        """How fast the newest long line of stdout arrived; None before the first."""

    @property
    def bytes_unsent(self) -> int:
        """Bytes accepted by `write` that the pipe has not taken yet."""

    @property
    def has_room(self) -> bool:
        """Whether `room` returns at once."""

    async def room(self) -> None:
        """Wait while the pipe is full.

        Raises:
            PipeClosed: the process does not read any more.
        """

    def write(self, line: bytes) -> None:
        """Hand over a whole line; it arrives whole or, with the process gone, not at all.

        Raises:
            PipeClosed: the process does not read any more.
        """

    async def readline(self) -> bytes:
        """Return the next line of stdout; b"" at its end, a cut last line as it is.

        Raises:
            LineTooLong: nothing more can be read.
        """

    async def each_line(self, take: Callable[[bytes], None]) -> None:
        """Hand each line of stdout to `take` as it comes, a cut last line as it is, until its end.

        Raises:
            LineTooLong: nothing more can be read.
            Exception: whatever `take` raises; no line comes after that.
        """

    async def stderr_ended(self) -> None:
        """Wait until stderr has been read to its end."""

    async def wait(self) -> ExitStatus:
        """Wait for the end of the process; what it left of its process group is ended too."""

    def close_stdin(self) -> None:
        """Let the process read end of file once everything sent has arrived."""

    def terminate(self) -> None:
        """Send SIGTERM to the process group."""

    def kill(self) -> None:
        """Send SIGKILL to the process group."""

    def close(self) -> None:
        """Close our ends of the pipes."""
