"""Stop strings with exact hold-back: nothing of a stop is ever shown, nothing else is lost."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Pass text on up to the stop string that is completed first.

    The text ends before that stop; of two stops completed by the same character, the longer one
    counts. The result does not depend on how the text is cut into pieces.

    Attributes:
        matched: the stop string that was completed, or None.

    Raises:
        ValueError: a stop is empty; it would end every text before its first character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError(
                "a stop string is empty and would end the text at once; "
                "give at least one character or leave the stop out"
            )
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take a piece of text and return what may be shown now; "" after a match."""
        if self.matched is not None:
            return ""
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            start, self.matched = match
            self._held = ""
            return text[:start]
        shown = len(text) - self._pending(text)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """Return what was held back and turned out to be no stop; the text is at its end."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """Return start and string of the stop with the earliest end, the longest of those."""
        found = [(text.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _pending(self, text: str) -> int:
        """Return how many characters at the end could be the beginning of a stop."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
