"""A program of others that is asked whether it is ready."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_START_S, _END_S, _PAUSE_S = 300.0, 10.0, 0.1
_SAID_BYTES = 2000


class Native:
    """A running program; made by `running`."""

    def __init__(self, command: Sequence[str]) -> None:
        # never full, unlike a pipe nobody reads
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said
            )
        except OSError:
            self._said.close()
            raise

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Ask until it is ready.

        Raises:
            RuntimeError: it ended before.
            TimeoutError: it took too long.
        """
        deadline_s = time.monotonic() + _START_S
        while not is_ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._told(f'ended with {self._process.returncode}')}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(self._told(f"was not ready after {_START_S:.0f} s"))
            time.sleep(_PAUSE_S)

    def end(self) -> None:
        """Ask it to end, kill what does not."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._said.close()

    def _told(self, what: str) -> str:
        size = self._said.seek(0, 2)
        self._said.seek(max(0, size - _SAID_BYTES))
        return (
            f"{self._process.args!r} {what}; it said:\n{self._said.read().decode(errors='replace')}"
        )


@contextmanager
def running(command: Sequence[str]) -> Iterator[Native]:
    """Start a program and end it.

    Raises:
        OSError: it cannot be started.
    """
    program = Native(command)
    try:
        yield program
    finally:
        program.end()
