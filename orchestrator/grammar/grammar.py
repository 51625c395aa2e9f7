"""What an answer must be, as the generator sees it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Constraint(Protocol):
    """Which tokens may come next in one answer."""

    def allowed(self) -> bytes | None:
        """Return a bitmap of the tokens that may come next; None where all may.

        Token t is bit t % 8, counted from the lowest, of byte t // 8. Where the answer may end
        here, the end-of-text tokens are among them.
        """

    def take(self, token_id: int) -> None:
        """Hear which of them came."""


@runtime_checkable
class Grammar(Protocol):
    """What answers must be; compiled once, shared by requests."""

    def begin(self) -> Constraint:
        """Return what holds for a new answer."""
