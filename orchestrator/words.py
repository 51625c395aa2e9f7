"""One line of a hosts file -> its words: quotes, comments, tabs."""

from __future__ import annotations

BLANKS = " \t"
QUOTES = "\"'"


def split_words(line: str) -> list[str]:
    r"""Split a line at blanks; `#` at the start of a word begins a comment.

    Quotes hold blanks and `#` together and may stand anywhere in a word (`env.X="a b"`). Within
    double quotes `\"` and `\\` stand for the second character; elsewhere `\` is an ordinary one.

    Raises:
        ValueError: a quote is not closed, or there is a control character.
    """
    words: list[str] = []
    at = 0
    while at < len(line):
        if line[at] in BLANKS:
            at += 1
        elif line[at] == "#":
            break
        else:
            word, at = _word(line, at)
            words.append(word)
    return words


def _word(line: str, at: int) -> tuple[str, int]:
    """Read the word that begins at `at`; return it and where it ends."""
    parts: list[str] = []
    while at < len(line) and line[at] not in BLANKS:
        if line[at] in QUOTES:
            part, at = _quoted(line, at)
            parts.append(part)
            continue
        if ord(line[at]) < 32 or ord(line[at]) == 127:
            raise ValueError(
                f"control character {line[at]!r} at column {at + 1}; delete it or retype the line"
            )
        parts.append(line[at])
        at += 1
    return "".join(parts), at


def _quoted(line: str, at: int) -> tuple[str, int]:
    """Read the quoted text that begins at `at`; return it and where it ends."""
    quote, begin = line[at], at
    parts: list[str] = []
    at += 1
    while at < len(line):
        if line[at] == quote:
            return "".join(parts), at + 1
        if quote == '"' and line[at : at + 2] in ('\\"', "\\\\"):
            at += 1
        parts.append(line[at])
        at += 1
    raise ValueError(
        f"the quote {quote} at column {begin + 1} is not closed; add {quote} to end it"
    )
