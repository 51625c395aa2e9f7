"""Guess that what followed the same tokens before follows them again: prompt lookup.

It needs no model. Code that is edited, text that is quoted and answers that repeat themselves are
guessed well (https://github.com/apoorvumang/prompt-lookup-decoding). One token of the match may be
another one, also the last: a copy goes on behind a word that was changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.speculation.drafter import Draft

# Beyond it a longer match says no more about the chance of its guesses.
LONGEST_MATCH = 32
# Earlier places of the same tokens that are looked at, newest first: bounds the time.
MOST_PLACES = 12
# Scores of matches at which a new kind of guesses begins, and the kind of each score: two for each
# token up to a changed one, if any, and one for each before that.
_KINDS = (1, 2, 4, 6, 8, 12, 18, 26, 40, 2 * LONGEST_MATCH)
_KIND_OF = tuple(sum(n >= least for least in _KINDS) for n in range(6 * LONGEST_MATCH))


class NgramDrafter:
    """Finds the end of the text that stood in it before: the best match, of equal ones the newest.

    Attributes:
        takes_time: not any.
    """

    takes_time = False

    def __init__(self) -> None:
        # Positions after each single token and each pair, of certain tokens, in their order.
        self._singles: dict[int, list[int]] = {}
        self._pairs: dict[tuple[int, int], list[int]] = {}
        self._num_indexed = 0

    async def guess(self, ids: Sequence[int], num_certain: int, most: int) -> Draft:
        """Return the tokens after the match; none without one."""
        return self.look_up(ids, num_certain, most)

    def look_up(self, ids: Sequence[int], num_certain: int, most: int) -> Draft:
        """Do what `guess` does."""
        self._index(ids, num_certain)
        place, score = self._match(ids)
        if not score:
            return Draft()
        tokens: list[int] = []
        for at in range(place, place + most):
            # A match that reaches to the end goes on with what it gave: a period.
            tokens.append(ids[at] if at < len(ids) else tokens[at - len(ids)])
        # A guess whose predecessors are right stands behind a match so much longer.
        return Draft(tuple(tokens), tuple(_KIND_OF[score + 2 * i] for i in range(most)))

    async def aclose(self) -> None:
        """Hold nothing."""

    def _index(self, ids: Sequence[int], num_certain: int) -> None:
        # The place after the last certain token is no guess for itself.
        for end in range(max(1, self._num_indexed), num_certain):
            self._singles.setdefault(ids[end - 1], []).append(end)
            if end > 1:
                self._pairs.setdefault((ids[end - 2], ids[end - 1]), []).append(end)
        self._num_indexed = max(self._num_indexed, num_certain)

    def _match(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return the place after the best match and its score, 0 without one."""
        end, alike = len(ids), self._singles.get(ids[-1])
        if alike and end > 1:
            alike = self._pairs.get((ids[-2], ids[-1]), alike)
        elif end > 1:  # a token that is new may stand for another one
            before = self._singles.get(ids[-2], [])[-MOST_PLACES - 1 :]
            alike = [place + 1 for place in before if place < end - 1]
        best, best_score = 0, 0
        for place in reversed((alike or [])[-MOST_PLACES:]):
            score = _score(ids, place, end)
            if score > best_score:
                best, best_score = place, score
            if score >= 2 * LONGEST_MATCH:
                break
        return best, best_score


def _score(ids: Sequence[int], place: int, end: int) -> int:
    """Return how well what stands before two places agrees."""
    straight = _agreeing(ids, place, end)
    beyond = _agreeing(ids, place - straight - 1, end - straight - 1)
    return 2 * straight + beyond


def _agreeing(ids: Sequence[int], place: int, end: int) -> int:
    length = 0
    while length < min(place, LONGEST_MATCH) and ids[place - length - 1] == ids[end - length - 1]:
        length += 1
    return length
