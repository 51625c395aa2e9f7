"""What a signal does: each part of a chat has its own answer to Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from orchestrator.interruption import SIGNALS

Act = Callable[[signal.Signals], None]


class Attention:
    """Hands each signal to what goes on, in the main thread, while the block runs.

    A signal that this program was started to ignore (nohup) stays ignored.

    Attributes:
        ending: the first signal that asks the program to end; Ctrl-C does not by itself.
    """

    def __init__(self) -> None:
        self.ending: signal.Signals | None = None
        self._act: Act = lambda number: None
        self._before: dict[signal.Signals, signal.Handlers | Callable[..., object] | int | None]
        self._before = {}

    def __enter__(self) -> Attention:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextlib.contextmanager
    def to(self, act: Act) -> Iterator[None]:
        """Let signals do this while the block runs."""
        before, self._act = self._act, act
        try:
            yield
        finally:
            self._act = before

    def _take(self, number: int, frame: FrameType | None) -> None:
        taken = signal.Signals(number)
        if taken is not signal.SIGINT and self.ending is None:
            self.ending = taken
        self._act(taken)
