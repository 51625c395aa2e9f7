"""Ctrl-C and other signals: the first ends the run in order, the next ones hurry it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked this program to end."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"interrupted by {number.name}")
        self.number = number

    @property
    def exit_code(self) -> int:
        """128 + the signal's number."""
        return 128 + self.number


class Interruption:
    """Turn signals into cancellation of the current task while the block runs.

    The first signal cancels: the request is released and the stages end by their ladder. Each
    later one calls `harder` and cancels what goes on then; a ladder that is cancelled goes to
    SIGKILL at once. A signal that this program was started to ignore (nohup) stays ignored.

    Args:
        say: tells the user what the first signal does.

    Attributes:
        signal: the first one that came.
        softer: what the first signal does in place of cancelling; it says so itself.
        harder: ends everything that can be ended at once.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.signal: signal.Signals | None = None
        self.softer: Callable[[signal.Signals], None] | None = None
        self.harder: Callable[[], None] = lambda: None
        self._say = say
        self._taken = [s for s in SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]

    def __enter__(self) -> Interruption:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in self._taken:
            loop.add_signal_handler(number, self._take, task, number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in self._taken:
            loop.remove_signal_handler(number)
        if error is not None and self.signal is not None:
            # Also where the end of a killed stage was noticed before the cancellation.
            raise Interrupted(self.signal) from None

    def _take(self, task: asyncio.Task[Any], number: signal.Signals) -> None:
        if self.signal is None:
            self.signal = number
            if self.softer is not None:
                self.softer(number)
                return
            self._say(f"{number.name}: ending the stages; a second one ends them at once")
        else:
            self.harder()
        task.cancel()
