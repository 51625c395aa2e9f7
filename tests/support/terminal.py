"""A program at a terminal of its own, as a person uses it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.support.cli import environment

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """Types to a program and reads what it shows; stdin, stdout and stderr are the terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.shown = ""
        self._master = master
        self._seen = 0

    def type(self, text: str) -> None:
        """Type something; a line ends with a line break."""
        os.write(self._master, text.encode())

    def wait_for(self, text: str, timeout_s: float = 60.0) -> str:
        """Wait until a text is shown after those waited for before; return what came up to it."""
        deadline_s = time.monotonic() + timeout_s
        while (index := self.shown.find(text, self._seen)) < 0:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"no {text!r} within {timeout_s} s in:\n{self.shown[self._seen :]}"
            assert self._read(left_s), f"it ended without {text!r}:\n{self.shown[self._seen :]}"
        start, self._seen = self._seen, index + len(text)
        return self.shown[start : self._seen]

    def press_until(self, key: str, text: str, every_s: float = 10.0) -> str:
        """Press a key until a text is shown, as somebody does who sees nothing come of it.

        An interrupt that comes in the microseconds in which Python's line editor goes from a key
        to its wait for the next one is kept until the next interrupt.
        """
        for _ in range(3):
            self.type(key)
            try:
                return self.wait_for(text, every_s)
            except AssertionError as error:
                missing = error
        raise missing

    def hang_up(self) -> None:
        """Close the terminal while the program uses it, as a window is closed."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._master)
        os.close(nothing)

    def end(self, timeout_s: float = 60.0) -> int:
        """Wait for the end of the program and return its exit code."""
        deadline_s = time.monotonic() + timeout_s
        while self._read(max(0.0, deadline_s - time.monotonic())):
            assert time.monotonic() < deadline_s, f"it goes on:\n{self.shown[self._seen :]}"
        return self.process.wait(max(0.1, deadline_s - time.monotonic()))

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], timeout_s)
        try:
            data = os.read(self._master, 65536) if ready else b"\0"
        except OSError:  # EIO: nobody has the terminal open any more.
            data = b""
        self.shown += data.strip(b"\0").decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)


@contextmanager
def at_terminal(words: Sequence[str], extra: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """Run a program at a terminal; it is killed where the block leaves it running."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        words,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment({"TERM": "dumb", **(extra or {})}),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)
