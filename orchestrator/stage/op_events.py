"""The op events of one stage, some at a time: one by one they are a fifth of an op's cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from worker.protocol.codec import is_op_event

_MOST_HELD = 16
_MOST_HELD_S = 0.05


class OpEvents:
    """Hold lines that begin as `op` events do, for a moment, and hand them on together.

    Processors run the same code several times in a row far faster than once between two waits.

    Args:
        keep: takes each line, with the wall clock in milliseconds at which it came.
        on_garbage: takes the first line that turns out to be none; those after it are dropped.
    """

    def __init__(
        self, keep: Callable[[bytes, float], None], on_garbage: Callable[[bytes], None]
    ) -> None:
        self._keep = keep
        self._on_garbage = on_garbage
        self._held: list[tuple[bytes, float]] = []
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, line: bytes) -> None:
        """Take a line; it is handed on within 50 ms."""
        self._held.append((line, time.time_ns() / 1e6))
        if len(self._held) >= _MOST_HELD:
            self.hand_on()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MOST_HELD_S, self._due)

    def hand_on(self) -> None:
        """Hand on what is held: before any other fact of the stage, so that their order stays."""
        if not self._held:
            return
        held, self._held = self._held, []
        for line, wall_ms in held:
            if not is_op_event(line):
                self._on_garbage(line)
                return
            self._keep(line, wall_ms)

    def close(self) -> None:
        """Hand on what is held; nothing may be held after."""
        self.hand_on()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self.hand_on()
