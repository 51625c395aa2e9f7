"""How hard to try to bring a lost stage back."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """Bounds of recovery.

    Attributes:
        most_attempts: restarts in a row, that is without an answered op between them; 0 ends the
            pipeline at the first failure of any stage.
        backoff_s: pause before the first, second, … restart; the last one is used again.
        history_bytes: hidden states kept for replay, of all requests together. Above it the
            largest requests are replayed from their token ids through all stages before the lost
            one, which takes longer and gives the same bits.
    """

    most_attempts: int = 3
    backoff_s: tuple[float, ...] = (0.0, 1.0, 3.0)
    history_bytes: int = 512 * MIB

    def pause_s(self, attempt: int) -> float:
        """Return the pause before an attempt, counted from 1."""
        return self.backoff_s[min(attempt, len(self.backoff_s)) - 1] if self.backoff_s else 0.0


NO_RECOVERY = RecoveryPolicy(most_attempts=0)
