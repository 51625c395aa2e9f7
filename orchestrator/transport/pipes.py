"""A child process on three pipes of our own; every transport is this with another command."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
from collections.abc import Callable

from orchestrator.transport.base import ExitStatus, Launch, SpawnError
from orchestrator.transport.line_writer import LineWriter
from orchestrator.transport.lines import Drain, LineReader

# 1.3 times the throughput at 1 MiB a line, and a stage can write 7,680 events instead of 480
# before it waits for us (transport measurements, 2 cores).
PIPE_BYTES = 1024 * 1024
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", None)


class PipedProcess:
    """A running process; see `StageProcess`."""

    def __init__(
        self,
        launch: Launch,
        process: asyncio.subprocess.Process,
        stdin: tuple[asyncio.WriteTransport, LineWriter],
        stdout: LineReader,
        stderr: tuple[asyncio.ReadTransport, Drain],
    ) -> None:
        self.host = launch.host
        self.pid = process.pid
        self._process = process
        self._stdin, self._writer = stdin
        self._stdout = stdout
        self._stderr, self._drain = stderr

    @staticmethod
    async def start(
        launch: Launch, *, max_line_bytes: int, on_stderr: Callable[[bytes], None]
    ) -> PipedProcess:
        """Start the command in a session of its own.

        A session of its own keeps a terminal's Ctrl-C from the stages (the orchestrator ends them
        in order), keeps ssh from prompting on the terminal, and makes one group to signal.

        A caller must not cancel this half-way: the process would be left without an owner.

        Raises:
            SpawnError: the program cannot be started.
        """
        child_in, our_in, our_out, child_out, our_err, child_err = _pipes(launch.argv[0])
        _widen(our_in, our_out)
        ours = [
            os.fdopen(our_in, "wb", 0),
            os.fdopen(our_out, "rb", 0),
            os.fdopen(our_err, "rb", 0),
        ]
        try:
            process = await asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=child_in,
                stdout=child_out,
                stderr=child_err,
                start_new_session=True,
            )
        except BaseException as error:
            for pipe in ours:
                pipe.close()
            if isinstance(error, (OSError, ValueError)):
                raise SpawnError(_why_not(launch.argv[0], error)) from error
            raise
        finally:
            for fd in (child_in, child_out, child_err):
                os.close(fd)
        loop = asyncio.get_running_loop()
        return PipedProcess(
            launch,
            process,
            await loop.connect_write_pipe(LineWriter, ours[0]),
            LineReader(ours[1], max_line_bytes),
            await loop.connect_read_pipe(lambda: Drain(on_stderr), ours[2]),
        )

    @property
    def bytes_received(self) -> int:
        """Bytes of stdout and stderr so far."""
        return self._stdout.bytes_received + self._drain.bytes_received

    @property
    def received_bytes_s(self) -> float | None:
        """How fast the newest long line of stdout arrived; None before the first."""
        return self._stdout.arrival.bytes_s

    @property
    def bytes_unsent(self) -> int:
        """Bytes accepted by `write` that the pipe has not taken yet."""
        return self._writer.bytes_unsent

    @property
    def has_room(self) -> bool:
        """Whether `room` returns at once."""
        return self._writer.has_room

    async def room(self) -> None:
        """Wait while the pipe is full.

        Raises:
            PipeClosed: the process does not read any more.
        """
        await self._writer.room()

    def write(self, line: bytes) -> None:
        """Hand over a whole line.

        Raises:
            PipeClosed: the process does not read any more.
        """
        self._writer.write(line)

    async def readline(self) -> bytes:
        """Return the next line of stdout; b"" at its end.

        Raises:
            LineTooLong: nothing more can be read.
        """
        return await self._stdout.readline()

    async def each_line(self, take: Callable[[bytes], None]) -> None:
        """Hand each line of stdout to `take` as it comes, until its end.

        Raises:
            LineTooLong: nothing more can be read.
            Exception: whatever `take` raises; no line comes after that.
        """
        await self._stdout.each(take)

    async def wait(self) -> ExitStatus:
        """Wait for the end of the process; what it left of its process group is ended too."""
        returncode = await self._process.wait()
        # A launcher's children, or something the worker started, must not hold the pipes open.
        self._signal(signal.SIGKILL)
        return ExitStatus.of(returncode)

    async def stderr_ended(self) -> None:
        """Wait until stderr has been read to its end."""
        await self._drain.ended.wait()

    def close_stdin(self) -> None:
        """Let the process read end of file once everything sent has arrived."""
        self._stdin.close()

    def terminate(self) -> None:
        """Send SIGTERM to the process group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process group."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Close our ends of the pipes, whatever is still in them."""
        # asyncio reports the loss of a pipe twice when one is aborted that is already closed.
        if not self._stdin.is_closing() or self._stdin.get_write_buffer_size():
            self._stdin.abort()
        self._stdout.close()
        self._stderr.close()

    def _signal(self, number: signal.Signals) -> None:
        # The child leads its own session, so its pid names the group also after its own end.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _pipes(program: str) -> list[int]:
    """Return the ends of three pipes, of each the one to read and the one to write.

    Raises:
        SpawnError: this process may not open as many; none is left open.
    """
    fds: list[int] = []
    try:
        for _ in range(3):
            fds += os.pipe()
    except OSError as error:
        for fd in fds:
            os.close(fd)
        raise SpawnError(_why_not(program, error)) from error
    return fds


def _widen(*fds: int) -> None:
    if _F_SETPIPE_SZ is None:
        return
    for fd in fds:
        # Over the user's limit of pipe pages the default size serves as well, only slower.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, _F_SETPIPE_SZ, PIPE_BYTES)


def _why_not(program: str, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"could not be started: there is no program '{program}' here; install it"
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return (
            "could not be started: this machine allows no more open files "
            f"({error.strerror}); raise the limit with 'ulimit -n', or start fewer stages"
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"could not be started: '{program}': {reason}"
