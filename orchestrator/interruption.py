"""Ctrl-C and other signals: the first ends the run in order, the next ones hurry it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


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

    Once the block has ended because of a signal, nothing is left that a further one could end,
    and it is ignored up to the end of the process: the first one alone says what became of it.

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
        self._before: dict[signal.Signals, Handler] = {}
        self._is_over = False
        # A later signal waits to be acted on; what comes meanwhile would only say it again.
        self._is_heard = False

    def __enter__(self) -> Interruption:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        # Not the loop's own handlers: to remove those gives Python's back for a moment.
        def hear(number: int, frame: FrameType | None) -> None:
            is_first = self.signal is None
            if is_first:
                self.signal = signal.Signals(number)
            if is_first or not self._is_heard:
                self._is_heard = not is_first
                loop.call_soon_threadsafe(self._act, task, is_first)

        self._before = take_signals(hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        if self.signal is None:
            give_back(self._before)
        if self.signal is not None:
            ignore(self._before)
            # Also where the end of a killed stage was noticed before the cancellation.
            raise Interrupted(self.signal) from None

    def _act(self, task: asyncio.Task[Any], is_first: bool) -> None:
        if not is_first:
            self._is_heard = False
        if self._is_over:
            return  # It came with the end of the block, which tells of it.
        assert self.signal is not None
        if is_first and self.softer is not None:
            self.softer(self.signal)
            return
        if is_first:
            self._say(f"{self.signal.name}: ending the stages; a second one ends them at once")
        else:
            self.harder()
        task.cancel()


def take_signals(handler: Handler) -> dict[signal.Signals, Handler]:
    """Let a handler have the signals that are not ignored; return who had them before."""
    taken = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in taken}


def give_back(before: Mapping[signal.Signals, Handler]) -> None:
    """Let those have the signals that had them before."""
    for number, handler in before.items():
        # None: it was not Python's, and cannot be set again from here.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def ignore(numbers: Iterable[signal.Signals]) -> None:
    """Let these signals do nothing any more, also while the interpreter ends."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
