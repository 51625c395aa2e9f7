"""How long a link has been silent, as far as this process was awake to notice."""

from __future__ import annotations

import time


class Silence:
    """Measure the time without a byte in either direction.

    Bytes of one long line count, so that a slow link is not taken for a dead one. An interval in
    which this process did not run (a suspended laptop, a blocked loop) counts as `longest_step_s`
    at most: the answers may wait unread in the pipe.
    """

    def __init__(self, longest_step_s: float) -> None:
        self.silent_s = 0.0
        self._longest_step_s = longest_step_s
        self._received = 0
        self._unsent = 0
        self._seen_s = time.monotonic()

    def observe(self, bytes_received: int, bytes_unsent: int) -> None:
        """Look at the counters of the link."""
        now_s = time.monotonic()
        step_s = min(now_s - self._seen_s, self._longest_step_s)
        moved = bytes_received != self._received or bytes_unsent < self._unsent
        self.silent_s = 0.0 if moved else self.silent_s + step_s
        self._received, self._unsent, self._seen_s = bytes_received, bytes_unsent, now_s

    def reset(self) -> None:
        """Start anew: something has just been asked."""
        self.silent_s = 0.0
