"""Which requests are between two decode steps: their next one is about to be asked for."""

from __future__ import annotations

import time

from worker.protocol.ops import RequestId


class Presence:
    """Requests that were given a token a moment ago.

    One that took longer than it was waited for, because whoever reads its text is slow or its next
    guesses take time, is not waited for any more until it was quick once.
    """

    def __init__(self) -> None:
        self._since: dict[RequestId, float] = {}
        # When those that were late were given their newest token.
        self._late: dict[RequestId, float] = {}

    def __bool__(self) -> bool:
        return bool(self._since)

    def was_answered(self, rid: RequestId) -> None:
        """Note that a request has got a token."""
        self._since.pop(rid, None)
        (self._late if rid in self._late else self._since)[rid] = time.perf_counter()

    def came(self, rid: RequestId, within_s: float) -> None:
        """Note that a request is back; in time, if within so many seconds."""
        self._since.pop(rid, None)
        answered_s = self._late.get(rid)
        if answered_s is not None and time.perf_counter() - answered_s < within_s:
            del self._late[rid]

    def forget(self, rid: RequestId) -> None:
        """Note that a request will not be back."""
        self._since.pop(rid, None)
        self._late.pop(rid, None)

    def expected(self, within_s: float) -> int:
        """Return how many are about to come; those that were given a token before that are late."""
        since, before_s = self._since, time.perf_counter() - within_s
        while since:
            rid, answered_s = next(iter(since.items()))
            if answered_s >= before_s:
                break
            del since[rid]
            self._late[rid] = answered_s
        return len(since)

    def oldest_s(self) -> float:
        """Return for how long the one that was answered first has been expected."""
        return time.perf_counter() - next(iter(self._since.values()))
