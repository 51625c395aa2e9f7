"""The deadlines of the ops in flight: one timer for all, as one for each would cost with each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from orchestrator.stage.pending import NEVER_S, PendingOp


class Deadlines:
    """Let each op fail with TimeoutError at its time.

    The timer stands at the earliest deadline that it was ever told of. An op that was answered
    before is not taken off: when the timer goes, it is set to the earliest of those that wait.

    Args:
        in_flight: the ops that may be late.
    """

    def __init__(self, in_flight: Callable[[], Iterable[PendingOp]]) -> None:
        self._in_flight = in_flight
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, op: PendingOp) -> None:
        """Let an op that is in flight from now on fail when it is late."""
        if op.late_s == NEVER_S:
            return
        if self._timer is None or op.late_s < self._timer.when():
            self._set(op.late_s)

    def close(self) -> None:
        """Let nothing fail any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, late_s: float) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_at(late_s, self._expire)

    def _expire(self) -> None:
        assert self._timer is not None
        now_s = self._timer.when()  # The loop's clock may stand a little before it.
        self._timer = None
        waiting = [op for op in self._in_flight() if not op.future.done()]
        for op in waiting:
            if op.late_s <= now_s:
                op.future.set_exception(TimeoutError())
        left = [op.late_s for op in waiting if now_s < op.late_s < NEVER_S]
        if left:
            self._set(min(left))
