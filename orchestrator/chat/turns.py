"""Lines -> turns: one line, lines that go on after a backslash, or a block in triple quotes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PROMPT, MORE = "> ", "... "
QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class Turn:
    """What was typed: a command with what follows its name, or a question.

    Attributes:
        command: without its slash; None for a question.
    """

    text: str
    command: str | None = None


class NoText(Exception):
    """Bytes that are no text; one sentence."""


def read_turn(read_line: Callable[[str], str]) -> Turn:
    """Read one turn.

    Args:
        read_line: returns the next line, given a prompt; raises EOFError where there is none.

    Raises:
        EOFError: there is nothing more; an unfinished turn is returned first.
        NoText: the turn is not UTF-8.
    """
    line = read_line(PROMPT)
    if line.lstrip().startswith(QUOTES):
        return Turn(_checked(_block(line.lstrip().removeprefix(QUOTES), read_line)))
    text = _checked(_continued(line, read_line))
    if text.startswith("//"):
        return Turn(text[1:])
    if text.startswith("/"):
        name, _, rest = text[1:].partition(" ")
        return Turn(rest.strip(), name.strip())
    return Turn(text)


def _block(line: str, read_line: Callable[[str], str]) -> str:
    lines: list[str] = []
    while not line.rstrip().endswith(QUOTES):
        lines.append(line)
        try:
            line = read_line(MORE)
        except EOFError:
            break
    else:
        lines.append(line.rstrip().removesuffix(QUOTES))
    return "\n".join(lines).strip("\n")


def _continued(line: str, read_line: Callable[[str], str]) -> str:
    lines: list[str] = []
    while line.endswith("\\"):
        lines.append(line[:-1])
        try:
            line = read_line(MORE)
        except EOFError:
            break
    else:
        lines.append(line)
    return "\n".join(lines)


def _checked(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise NoText(
            f"what was typed is not UTF-8 at character {error.start + 1}; nothing was sent"
        ) from None
    return text
