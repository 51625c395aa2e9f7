"""The terminal of a chat, or the pipes in its place: lines in, the answer and notes out."""

from __future__ import annotations

import contextlib
import select
import signal
import sys
from typing import TextIO

from orchestrator.interruption import Interrupted
from orchestrator.run_report import end_line
from orchestrator.stderr import say
from orchestrator.text_output import TextOutput


class Console:
    """Reads lines in the main thread; writes from the thread of the event loop.

    Where stdin and stdout are a terminal, lines are edited, and earlier ones come back with the
    arrow keys; nothing of that is kept in a file.

    Attributes:
        is_terminal: whether somebody types.
    """

    def __init__(self) -> None:
        self.is_terminal = _is_terminal(sys.stdin)
        self._edits = self.is_terminal and _is_terminal(sys.stdout)
        self._output = TextOutput.stdout()
        self._prompt: str | None = None
        self._is_line_open = False
        if self._edits:
            # Its import alone makes input() edit lines.
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401
        if sys.stdin is not None:
            # What is no text is told apart by the caller, who can name the place.
            sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]

    def read_line(self, prompt: str) -> str:
        """Wait for a line and return it without its end; the prompt is for a terminal.

        Raises:
            EOFError: there is no further one.
            Interrupted: the terminal was closed; its SIGHUP may come later than the end of input.
        """
        self._prompt = prompt if self.is_terminal else None
        try:
            return self._read_line(prompt)
        except EOFError:
            if self.is_terminal and _is_closed(sys.stdin):
                raise Interrupted(signal.SIGHUP) from None
            raise
        finally:
            self._prompt = None

    def _read_line(self, prompt: str) -> str:
        if self._edits:
            return input(prompt)
        if self._prompt is not None:
            sys.stderr.write(prompt)
            sys.stderr.flush()
        line = "" if sys.stdin is None else sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")

    async def write(self, text: str) -> None:
        """Write a piece of the answer.

        Raises:
            OutputClosed, OutputFailed: it cannot be written.
        """
        if text:
            self._is_line_open = not text.endswith("\n")
            await self._output.write(text)

    async def end_answer(self) -> None:
        """End the last line of the answer.

        Raises:
            OutputClosed, OutputFailed: it cannot be written.
        """
        if self._is_line_open:
            await self.write("\n")

    def end_text(self) -> None:
        """Let what goes to stderr begin a line of its own, where both are seen together."""
        if self._is_line_open or self._prompt is not None:
            end_line()
            self._is_line_open = False

    def tell(self, text: str) -> None:
        """Say something on stderr, whatever goes on; a prompt is shown again after it."""
        prompt = self._prompt
        self.end_text()
        say(text)
        if prompt is not None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(prompt + self._typed())
                sys.stderr.flush()

    def end_prompt(self) -> None:
        """Leave the line of a prompt that was not answered."""
        if self.is_terminal:
            say("")

    def close(self) -> None:
        """End the thread that writes."""
        self._output.close()

    def _typed(self) -> str:
        if not self._edits:
            return ""
        with contextlib.suppress(ImportError):
            import readline

            return readline.get_line_buffer()
        return ""


def _is_terminal(stream: object) -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return bool(stream.isatty())  # type: ignore[attr-defined]
    return False


def _is_closed(terminal: TextIO) -> bool:
    poll = select.poll()
    poll.register(terminal, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))
