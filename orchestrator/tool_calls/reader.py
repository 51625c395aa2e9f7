"""Finds the calls in an answer while it streams."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence

from orchestrator.tool_calls.call import Function
from orchestrator.tool_calls.cursor import Cursor, MoreNeeded, NoCall
from orchestrator.tool_calls.pieces import CallArguments, CallBegun, Piece, Text
from orchestrator.tool_calls.syntax import Syntax

_ALPHABET = string.ascii_letters + string.digits
_BLANK = string.whitespace
_LONG_CHARS = 256


class ToolReader:
    """Parts an answer into text and calls; the same ones however the text is cut.

    Nothing of a marker is shown, and nothing else is lost but white space that touches a call: what
    looked like a call and is none comes as the text that it is. A call comes when it is whole.

    Args:
        syntax: how the model writes calls.
        functions: that it was told of.
        new_id: makes the id of a call.
    """

    def __init__(
        self,
        syntax: Syntax,
        functions: Sequence[Function] = (),
        new_id: Callable[[], str] | None = None,
    ) -> None:
        self._syntax = syntax
        self._marks = marks = syntax.marks
        self._functions = functions
        self._new_id = new_id or (lambda: call_id(marks.id_prefix, marks.id_chars))
        self._num_calls = 0
        self._held = ""
        # White space that is text unless a call follows.
        self._blank = ""
        self._is_in_call = False
        # Whether nothing was shown since the beginning, or since the last call.
        self._is_at_edge = True

    @property
    def num_calls(self) -> int:
        """How many calls there were so far."""
        return self._num_calls

    def push(self, text: str) -> list[Piece]:
        """Return what `text` makes certain."""
        self._held += text
        # A long call is read again only where it may end, not once for each token of it.
        is_long = self._is_in_call and len(self._held) > _LONG_CHARS
        if is_long and not any(one in text for one in self._marks.closers):
            return []
        return self._drain(is_end=False)

    def finish(self) -> list[Piece]:
        """Return the rest; the answer has ended."""
        pieces = self._drain(is_end=True)
        if self._blank and not (self._is_at_edge and self._num_calls):
            pieces.append(Text(self._blank))
        self._blank = ""
        return pieces

    def _drain(self, *, is_end: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while self._held:
            at, marker = self._next_marker()
            if not marker:
                pieces += self._text(self._held if is_end else self._held[:at])
                self._held = "" if is_end else self._held[at:]
                break
            pieces += self._text(self._held[:at])
            self._held = self._held[at:]
            if marker in self._marks.silent:
                self._held = self._held[len(marker) :]
                continue
            cursor = Cursor(self._held, len(marker), is_end=is_end)
            try:
                pieces += self._calls(cursor, marker)
            except MoreNeeded:
                self._is_in_call = True
                return pieces
            except NoCall:
                pieces += self._text(marker)
                self._held = self._held[len(marker) :]
        self._is_in_call = False
        return pieces

    def _calls(self, cursor: Cursor, opener: str) -> list[Piece]:
        calls = self._syntax.read(cursor, opener, self._functions)
        pieces: list[Piece] = []
        for call in calls:
            pieces.append(CallBegun(self._num_calls, self._new_id(), call.name))
            pieces.append(CallArguments(self._num_calls, call.arguments))
            self._num_calls += 1
        self._held = self._held[cursor.at :]
        self._blank, self._is_at_edge = "", True
        return pieces

    def _next_marker(self) -> tuple[int, str]:
        """Return the first marker and where it stands, or "" and where one may yet begin."""
        held = self._held
        markers = (*self._marks.openers, *self._marks.silent)
        found = [(at, one) for one in markers if (at := held.find(one)) >= 0]
        if self._is_at_edge:
            passed = len(held) - len(held.lstrip(self._between()))
            found += [(passed, one) for one in self._marks.edge_openers if held[passed:][:1] == one]
        if found:
            return min(found)
        begun = [
            len(held) - size
            for one in markers
            for size in range(1, min(len(one), len(held) + 1))
            if held.endswith(one[:size])
        ]
        return min(begun, default=len(held)), ""

    def _between(self) -> str:
        return _BLANK + (self._marks.separators if self._num_calls else "")

    def _text(self, text: str) -> list[Piece]:
        text = self._blank + text
        if self._is_at_edge and self._num_calls:
            text = text.lstrip(self._between())
        shown = text.rstrip(_BLANK)
        self._blank = text[len(shown) :]
        if not shown:
            return []
        self._is_at_edge = False
        return [Text(shown)]


def call_id(prefix: str, num_chars: int) -> str:
    """Return a new id of a call: a prefix and random letters and digits."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(num_chars))
