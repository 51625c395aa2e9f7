"""How often guesses of each kind turn out right."""

from __future__ import annotations

from dataclasses import dataclass

# Before any was tried: of a draft model, then of matches by their score, see `NgramDrafter`.
_FIRST = (0.7, 0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98)
# Of how many tries a belief is worth that comes from elsewhere.
_BELIEF = 3.0
_MEMORY = 0.95


@dataclass(slots=True)
class _Tries:
    """Of one kind of guesses; old ones count less."""

    right: float = 0.0
    count: float = 0.0

    def note(self, is_right: bool) -> None:
        self.right = self.right * _MEMORY + is_right
        self.count = self.count * _MEMORY + 1


class Chances:
    """Learn from the guesses of one request, or of all requests of a pipeline.

    Args:
        others: what is believed of a kind as long as little of it was tried here.
    """

    def __init__(self, others: Chances | None = None) -> None:
        self._others = others
        self._tries: dict[int, _Tries] = {}

    def note(self, kind: int, *, is_right: bool) -> None:
        """Take in what became of a guess, here and for all."""
        self._tries.setdefault(kind, _Tries()).note(is_right)
        if self._others is not None:
            self._others.note(kind, is_right=is_right)

    def of(self, kind: int) -> float:
        """Return how likely a guess of a kind is right."""
        if self._others is None:
            believed = _FIRST[min(kind, len(_FIRST) - 1)]
        else:
            believed = self._others.of(kind)
        tries = self._tries.get(kind)
        if tries is None:
            return believed
        return (tries.right + _BELIEF * believed) / (tries.count + _BELIEF)
