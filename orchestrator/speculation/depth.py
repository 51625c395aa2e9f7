"""How many tokens to guess: by what guesses were worth so far, and never at much of a loss."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from orchestrator.speculation.chances import Chances
from orchestrator.speculation.pass_costs import SIZES, PassCosts
from orchestrator.speculation.path import Verdict

# Losses may come to this share of the time of the request.
LOSS_SHARE = 0.025
# So many tokens are taken to come anyway, and their share may be lost before: what can be guessed
# of a text is mostly known after the first few guesses, and they come late where it must be saved
# up for.
ADVANCE_TOKENS = 20
# A guess that was not sent and turned out right would have saved a pass; so much of one may be
# spent on guessing for it. So nothing is risked on a text of which nothing can be guessed.
CREDIT_PASSES = 0.5
# A gain below it is not worth the trouble.
LEAST_GAIN = 1.02
# Where more rows than these are reached with a smaller chance, the rest goes in the next pass.
_SPLITS = (4, 8)
_SPLIT_CHANCE = 0.5
# Passes behind others may be in vain so much more often than there are stages: they cost little.
_PATIENCE = 1.5


class Depth:
    """Decides for one request.

    It keeps account: a pass with guesses is booked with what its tokens would have cost without,
    less what it took; a guess that was right though it was not sent is some credit. Where the
    account is overdrawn, nothing is guessed until plain passes have made up for it. So a text of
    which nothing is guessed loses at most `LOSS_SHARE`, taken of `ADVANCE_TOKENS` tokens more than
    it has, whatever was believed of chances and costs.

    Args:
        costs: of the pipeline.
        num_stages: passes that can be under way at once without waiting for each other.
        most_tokens: that the answer may have.
    """

    def __init__(
        self, costs: PassCosts, num_stages: int, most_tokens: int = ADVANCE_TOKENS
    ) -> None:
        self._costs = costs
        self._num_stages = num_stages
        self._advance = min(most_tokens, ADVANCE_TOKENS)
        self._chances = Chances(costs.chances)
        self._gained_s = 0.0
        self._elapsed_s = 0.0

    @property
    def may_try(self) -> bool:
        """Whether there is any use in asking for guesses."""
        return self._may_lose(0.0)

    def first(self, kinds: Sequence[int], most_to_come: int) -> int:
        """Return how many of some guesses go with the token that is certain, in one pass.

        Args:
            kinds: of the guesses there are.
            most_to_come: tokens that the answer may still have.
        """
        return self._best(kinds, 1, most_to_come)

    def behind(self, kinds: Sequence[int], unverified: Sequence[int], most_to_come: int) -> int:
        """Return how many guesses go in one more pass, behind those that are not verified yet.

        A pass that turns out wrong delays the right one by at most what it takes on one stage.

        Args:
            kinds: of the guesses there are.
            unverified: kinds of those under way.
            most_to_come: tokens that the answer may still have.
        """
        reached = prod(self._chances.of(kind) for kind in unverified)
        if reached * (1 + self._num_stages) * _PATIENCE < 1 or not self.may_try:
            return 0
        return self._best(kinds, 0, most_to_come)

    def guessed(self, verdict: Verdict) -> None:
        """Note what became of a guess, also of one that was not sent."""
        self._chances.note(verdict.kind, is_right=verdict.is_right)
        if verdict.is_right and not verdict.was_sent:
            self._gained_s += CREDIT_PASSES * (self._costs.plain_s or 0.0)

    def took(self, num_tokens: int, took_s: float, *, rows: int, is_plain: bool) -> None:
        """Book the time in which so many tokens became certain.

        Args:
            num_tokens: at least 1.
            took_s: since those before them, or since the pass was sent where that was later.
            rows: of the pass.
            is_plain: whether it is what a token costs without guesses.
        """
        self._elapsed_s += took_s
        if is_plain:
            self._costs.plain(took_s)
        elif (plain_s := self._costs.plain_s) is not None:
            # What takes longer than all rows twice, a stage that came back, is not their fault.
            most_s = 2 * max(2, rows) * plain_s
            self._gained_s += num_tokens * plain_s - min(took_s, most_s)

    def _best(self, kinds: Sequence[int], certain: int, most_to_come: int) -> int:
        """Return how many guesses give the most tokens for the time."""
        best, best_gain, tokens, chance = 0, LEAST_GAIN if certain else 0.0, float(certain), 1.0
        may_split = certain and self._num_stages >= 2 * max(1, self._costs.num_live)
        fitting = iter(SIZES)
        size = next(fitting)
        for count, kind in enumerate(kinds, 1):
            rows = certain + count
            if rows > SIZES[-1]:
                break
            if may_split and rows - 1 in _SPLITS and chance < _SPLIT_CHANCE:
                break
            chance *= self._chances.of(kind)
            tokens += chance
            while size < rows:
                size = next(fitting)
            if rows < size and count < len(kinds):
                continue  # a row more costs nothing more
            surplus = self._costs.surplus(rows) if rows > 1 else 0.0
            trial = self._costs.trial(rows)
            passes = max(1.0, most_to_come / max(tokens, 1.0))  # that share what the trial costs
            gain = tokens / (1 + surplus + trial / passes)
            if gain > best_gain and self._may_lose(surplus + trial):
                best, best_gain = count, gain
        return min(best, self._costs.most_rows - certain)

    def _may_lose(self, passes: float) -> bool:
        """Whether so much may be lost, in plain passes; nothing before one of those was seen."""
        plain_s = self._costs.plain_s
        if plain_s is None:
            return False
        allowed_s = LOSS_SHARE * (self._elapsed_s + self._advance * plain_s)
        return self._gained_s + allowed_s >= passes * plain_s
