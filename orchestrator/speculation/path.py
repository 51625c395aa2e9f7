"""The tokens of one request: certain ones, guesses being verified, guesses not sent yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.speculation.drafter import Draft


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a guess."""

    kind: int
    is_right: bool
    was_sent: bool = False


class Path:
    """One line of tokens; the first wrong guess ends all behind it.

    Attributes:
        ids: prompt and answer, then the guesses that were sent.
        num_certain: how many of `ids` are no guesses.
        is_ended: whether the newest draft said that the answer ends.
        num_sent: guesses that were sent, all in all.
        num_right: how many of those were right.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.ids = list(prompt)
        self.num_certain = len(self.ids)
        self.is_ended = False
        self.num_sent = 0
        self.num_right = 0
        self._kinds: deque[int] = deque()  # of the guesses in `ids`
        self._unsent: deque[tuple[int, int]] = deque()  # tokens with their kinds

    @property
    def unverified(self) -> Sequence[int]:
        """The kinds of the guesses that were sent and are not known to be right or wrong."""
        return self._kinds

    @property
    def unsent(self) -> Sequence[int]:
        """The kinds of the guesses that were not sent."""
        return [kind for _, kind in self._unsent]

    @property
    def all_ids(self) -> list[int]:
        """A copy of `ids` with the guesses that were not sent."""
        return [*self.ids, *(token for token, _ in self._unsent)]

    def draft(self, start: int, draft: Draft, ends: frozenset[int]) -> Verdict | None:
        """Take guesses that were made for the places from `start` on.

        Nothing may be guessed past `start` that the draft was not made from. Where tokens have
        become certain meanwhile, those that it guessed are judged.
        """
        tokens, since = list(draft.tokens), self.ids[start:]
        judged, verdict = min(len(since), len(tokens)), None
        if judged:
            verdict = Verdict(draft.kinds[0], tokens[:judged] == since[:judged])
            if not verdict.is_right:
                return verdict
        for token, kind in zip(tokens[judged:], draft.kinds[judged:], strict=True):
            if token in ends:
                self.is_ended = True
                break
            self._unsent.append((token, kind))
        return verdict

    def redraft(self, draft: Draft, ends: frozenset[int]) -> None:
        """Put guesses in the place of those that were not sent."""
        self._unsent.clear()
        self.draft(len(self.ids), draft, ends)

    def send(self, count: int) -> tuple[int, ...]:
        """Take the next guesses to be sent."""
        tokens = []
        for _ in range(count):
            token, kind = self._unsent.popleft()
            tokens.append(token)
            self._kinds.append(kind)
        self.ids += tokens
        self.num_sent += count
        return tuple(tokens)

    def certify(self, token_id: int) -> Verdict | None:
        """Put a certain token in its place; tell what it makes of the guess there, if any."""
        self.is_ended = False
        if self._kinds:
            is_right = self.ids[self.num_certain] == token_id
            verdict = Verdict(self._kinds.popleft(), is_right, was_sent=True)
            self.num_right += is_right
        elif self._unsent:
            guess, kind = self._unsent.popleft()
            verdict = Verdict(kind, guess == token_id)
        else:
            verdict = None
        if verdict is not None and not verdict.is_right:
            self.drop_guesses()
        if len(self.ids) == self.num_certain:
            self.ids.append(token_id)
        self.num_certain += 1
        return verdict

    def drop_guesses(self) -> None:
        """Forget every guess."""
        self.is_ended = False
        del self.ids[self.num_certain :]
        self._kinds.clear()
        self._unsent.clear()
