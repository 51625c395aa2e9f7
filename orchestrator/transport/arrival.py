"""How fast long lines arrive: what a link gives, seen from the receiving end alone."""

from __future__ import annotations

import time

# Shorter ones come in few reads, and say more about the event loop than about the link.
LONG_LINE_BYTES = 128 * 1024


class ArrivalRate:
    """Time from the first bytes of a long line to its last; nothing is done for short ones.

    A fast link is never taken for a slow one by much, as the bytes wait in the pipe while the
    event loop is busy; a slow start of TCP counts, as it holds the next line up likewise.

    Attributes:
        bytes_s: of the newest long line; None before the first.
    """

    def __init__(self) -> None:
        self.bytes_s: float | None = None
        self._begun_s = 0.0
        self._first_bytes = 0

    def begin(self, first_bytes: int) -> None:
        """Note that the first bytes of a line have come, and not all."""
        self._begun_s, self._first_bytes = time.perf_counter(), first_bytes

    def end(self, line_bytes: int) -> None:
        """Note that a line is complete."""
        if line_bytes >= LONG_LINE_BYTES:
            took_s = time.perf_counter() - self._begun_s
            self.bytes_s = (line_bytes - self._first_bytes) / max(took_s, 1e-6)
