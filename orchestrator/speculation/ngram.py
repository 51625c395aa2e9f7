"""Guess that what followed the same tokens before follows them again: prompt lookup.

It needs no model. Code that is edited, text that is quoted and answers that repeat themselves are
guessed well (https://github.com/apoorvumang/prompt-lookup-decoding).
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.speculation.drafter import Draft

# Beyond it a longer match says no more about the chance of its guesses.
LONGEST_MATCH = 32
# Earlier places of the same two tokens that are looked at, newest first: bounds the time.
MOST_PLACES = 12
_PAIR = 2
# The lengths of matches at which a new kind of guesses begins, and the kind of each length.
_KINDS = (1, 2, 3, 4, 6, 9, 13, 20, LONGEST_MATCH)
_KIND_OF = tuple(sum(n >= least for least in _KINDS) for n in range(2 * LONGEST_MATCH))


class NgramDrafter:
    """Finds the longest end of the text that stood in it before, of equal ones the newest."""

    takes_time = False

    def __init__(self) -> None:
        # Position after each single token and each pair, of certain tokens, in their order.
        self._singles: dict[int, int] = {}
        self._pairs: dict[tuple[int, int], list[int]] = {}
        self._num_indexed = 0

    async def guess(self, ids: Sequence[int], num_certain: int, most: int) -> Draft:
        """Return the tokens after the match; none where the last token never stood before."""
        return self.look_up(ids, num_certain, most)

    def look_up(self, ids: Sequence[int], num_certain: int, most: int) -> Draft:
        """Do what `guess` does."""
        self._index(ids, num_certain)
        place, length = self._match(ids, num_certain)
        if not length:
            return Draft()
        tokens: list[int] = []
        for at in range(place, place + most):
            # A match that reaches to the end goes on with what it gave: a period.
            tokens.append(ids[at] if at < len(ids) else tokens[at - len(ids)])
        # A guess whose predecessors are right stands behind a match so much longer.
        return Draft(tuple(tokens), _KIND_OF[length : length + most])

    async def aclose(self) -> None:
        """Hold nothing."""

    def _index(self, ids: Sequence[int], num_certain: int) -> None:
        # The place after the last certain token is no guess for itself.
        for end in range(max(1, self._num_indexed), num_certain):
            self._singles[ids[end - 1]] = end
            if end >= _PAIR:
                self._pairs.setdefault((ids[end - 2], ids[end - 1]), []).append(end)
        self._num_indexed = max(self._num_indexed, num_certain)

    def _match(self, ids: Sequence[int], num_certain: int) -> tuple[int, int]:
        """Return the place after the best match and its length, 0 without one."""
        end = len(ids)
        pairs = self._pairs.get((ids[-2], ids[-1])) if end >= _PAIR else None
        if not pairs:
            place = self._singles.get(ids[-1])
            return (place, 1) if place is not None else (0, 0)
        best, best_length = 0, 0
        for place in reversed(pairs[-MOST_PLACES:]):
            length = _PAIR
            while length < min(place, LONGEST_MATCH) and (
                ids[place - length - 1] == ids[end - length - 1]
            ):
                length += 1
            if length > best_length:
                best, best_length = place, length
            if length >= LONGEST_MATCH:
                break
        return best, best_length
