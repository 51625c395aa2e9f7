"""Lines for the user on stderr. It may be closed, full or read by nobody: the run goes on."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from orchestrator.bundle.mask import Masker

_MASKER = Masker()


def say(text: str) -> None:
    """Print a line to stderr, if it can be written."""
    write_line(sys.stderr, text)


def is_watched() -> bool:
    """Return whether stderr is a terminal."""
    # Closed, or none: a program can be started without.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return sys.stderr.isatty()
    return False


def write_line(stream: TextIO | None, text: str) -> None:
    """Write a line and flush it; None is a stream that this program was started without.

    What looks like a secret is masked: a library may quote an address with its password. What
    another host wrote may be quoted too, and must not command the terminal.
    """
    if stream is None:
        return  # print() would take stdout instead, which belongs to the answer.
    with contextlib.suppress(OSError, ValueError):
        harmless = "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)
        print(_MASKER.line(harmless), file=stream, flush=True)
