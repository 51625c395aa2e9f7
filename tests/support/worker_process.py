"""Drive a real worker process over its pipes, one JSON object a line, with a deadline on each."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 30.0
CONFIG_VARIABLES = ("MODEL", "STAGE", "NUM_STAGES", "PP_WORKER_STUB")

Line = dict[str, Any]


def worker_environment() -> dict[str, str]:
    """Return an environment in which a worker finds this checkout and no setting of the caller."""
    env = {name: value for name, value in os.environ.items() if name not in CONFIG_VARIABLES}
    return {**env, "PYTHONPATH": str(ROOT)}


class WorkerProcess:
    """A worker, or any program that speaks as one. Use as a context manager."""

    def __init__(
        self,
        *args: str,
        program: Sequence[str] = (sys.executable, "-P", "-m", "worker"),
    ) -> None:
        # Never full, unlike a pipe nobody reads.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self.process = subprocess.Popen(
            [*program, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=worker_environment(),
        )
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.lines: list[Line] = []
        self._buffer = bytearray()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for file in (self.stdin, self.stdout, self._stderr):
            with contextlib.suppress(BrokenPipeError):  # Closing flushes what was never read.
                file.close()

    def send(self, *lines: Line | bytes) -> None:
        """Write lines; objects are encoded."""
        encoded = (
            line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines
        )
        self.stdin.write(b"".join(encoded))
        self.stdin.flush()

    def read_line(self, deadline_s: float = DEADLINE_S) -> bytes:
        """Return the next raw line without its newline; `b""` at the end of stdout."""
        end_s = time.monotonic() + deadline_s
        searched = 0
        while (at := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            left_s = max(0.0, end_s - time.monotonic())
            if not select.select([self.stdout], [], [], left_s)[0]:
                raise TimeoutError(f"no line within {deadline_s} s; seen so far: {self.lines[-5:]}")
            chunk = os.read(self.stdout.fileno(), 1 << 20)
            if not chunk:
                rest = bytes(self._buffer)
                self._buffer.clear()
                return rest
            self._buffer += chunk
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        return line

    def until(self, wanted: Callable[[Line], bool], deadline_s: float = DEADLINE_S) -> Line:
        """Read on to the first line that is wanted; all lines are kept in `lines`."""
        while True:
            line = self.read_line(deadline_s)
            if not line:
                if self.process.poll() is not None or self._at_end():
                    raise EOFError(f"stdout ended; the last lines were {self.lines[-5:]}")
                continue  # The newline before `starting`.
            self.lines.append(json.loads(line))
            if wanted(self.lines[-1]):
                return self.lines[-1]

    def event(self, kind: str, deadline_s: float = DEADLINE_S) -> Line:
        """Read on to an event."""
        return self.until(lambda line: line.get("event") == kind, deadline_s)

    def ready(self) -> Line:
        """Read on to the ready line."""
        return self.until(lambda line: line.get("status") == "ready")

    def reply(self, deadline_s: float = DEADLINE_S) -> Line:
        """Read on to the next reply, an error or not."""
        return self.until(is_reply, deadline_s)

    def call(self, **request: Any) -> Line:
        """Send one request and return its reply."""
        self.send(request)
        return self.reply()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker."""
        self.process.send_signal(number)

    def end(self, deadline_s: float = DEADLINE_S) -> int:
        """Read to the end of stdout and return the exit code."""
        while (line := self.read_line(deadline_s)) or not self._at_end():
            if line:
                self.lines.append(json.loads(line))
        return self.process.wait(deadline_s)

    def stderr_text(self) -> str:
        """Return what the worker has written to stderr so far."""
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")

    def replies(self) -> list[Line]:
        """Return the replies among the lines read so far."""
        return [line for line in self.lines if is_reply(line)]

    def _at_end(self) -> bool:
        if self._buffer or not select.select([self.stdout], [], [], 0)[0]:
            return False
        self._buffer += os.read(self.stdout.fileno(), 1 << 20)
        return not self._buffer


def is_reply(line: Line) -> bool:
    """Tell replies from events and the ready line."""
    return "event" not in line and "status" not in line


def stub_worker(*args: str, stage: int = 0, num_stages: int = 2) -> WorkerProcess:
    """Start a stub worker."""
    return WorkerProcess("--stub", "--stage", str(stage), "--num-stages", str(num_stages), *args)
