"""A place in text that may still grow."""

from __future__ import annotations

import json
import re
from typing import Any

# A string, closed or not, or what opens or closes an object or a list.
_JSON_PART = re.compile(r'"(?:[^"\\]|\\.)*+(?P<quote>"?)|[{}\[\]]', re.DOTALL)
_SPACE = re.compile(r"\s*+")


class MoreNeeded(Exception):
    """What comes next decides."""


class NoCall(Exception):
    """What stands here cannot become a call, whatever comes."""


class Cursor:
    """Reads text from left to right.

    Each reading raises `MoreNeeded` where the text ends too early, or `NoCall` where it has ended
    for good. So what is read does not depend on how the text was cut.

    Args:
        text: as far as it is known.
        at: where to begin.
        is_end: whether it is whole.
    """

    def __init__(self, text: str, at: int, *, is_end: bool) -> None:
        self.text = text
        self.at = at
        self.is_end = is_end

    def space(self) -> None:
        """Pass white space, be there any or none."""
        match = _SPACE.match(self.text, self.at)
        assert match is not None, "it matches the empty text"
        self.at = match.end()

    def has(self, marker: str) -> bool:
        """Pass a marker if it comes next, and tell whether it did."""
        if self.text.startswith(marker, self.at):
            self.at += len(marker)
            return True
        if not self.is_end and marker.startswith(self.text[self.at :]):
            raise MoreNeeded
        return False

    def expect(self, marker: str) -> None:
        """Pass a marker that must come next."""
        if not self.has(marker):
            raise NoCall

    def closing(self, marker: str) -> None:
        """Pass white space and a marker if they come next, which models may leave out."""
        before = self.at
        self.space()
        if not self.has(marker):
            self.at = before

    def until(self, marker: str) -> str:
        """Return what comes before a marker, and pass both."""
        end = self.text.find(marker, self.at)
        if end < 0:
            raise self._short()
        passed = self.text[self.at : end]
        self.at = end + len(marker)
        return passed

    def word(self, pattern: re.Pattern[str]) -> str:
        """Return what matches a pattern, and pass it; it must be followed by something else."""
        match = pattern.match(self.text, self.at)
        end = self.at if match is None else match.end()
        if end == len(self.text):
            raise self._short()
        if match is None:
            raise NoCall
        self.at = end
        return match.group()

    def json(self, opening: str) -> Any:
        """Return the JSON object or list that must come next, and pass it.

        Args:
            opening: the characters that it may begin with, of "{[".
        """
        if self.at == len(self.text):
            raise self._short()
        if self.text[self.at] not in opening:
            raise NoCall
        end = self._json_end()
        try:
            value = json.loads(self.text[self.at : end], strict=False)
        except (ValueError, RecursionError):
            raise NoCall from None
        self.at = end
        return value

    def _json_end(self) -> int:
        depth = 0
        for part in _JSON_PART.finditer(self.text, self.at):
            match part.group()[0]:
                case "{" | "[":
                    depth += 1
                case "}" | "]":
                    depth -= 1
                    if depth == 0:
                        return part.end()
                case _ if not part["quote"]:
                    break
        raise self._short()

    def _short(self) -> Exception:
        return NoCall() if self.is_end else MoreNeeded()
