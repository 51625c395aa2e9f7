"""What a signal does: each part of a chat has its own answer to Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from orchestrator.interruption import Handler, Interrupted, give_back, ignore, take_signals

Act = Callable[[signal.Signals], None]


class Attention:
    """Hands each signal to what goes on, in the main thread, while the block runs.

    A signal that this program was started to ignore (nohup) stays ignored. Once one has ended the
    block, further ones are ignored: nothing is left that they could end.

    Attributes:
        ending: the first signal that asks the program to end; Ctrl-C does not by itself.
    """

    def __init__(self) -> None:
        self.ending: signal.Signals | None = None
        self._act: Act = lambda number: None
        self._before: dict[signal.Signals, Handler] = {}

    def __enter__(self) -> Attention:
        self._before = take_signals(self._take)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.ending is not None or isinstance(error, Interrupted):
            ignore(self._before)
        else:
            give_back(self._before)

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
