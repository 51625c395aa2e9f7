"""Facts that are kept in memory until it is known whether a bundle is to have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from orchestrator.bundle.records import (
    ExitRecord,
    FailureRecord,
    OpRecord,
    Recorder,
    RecoveryRecord,
    RequestRecord,
)

# A survey has some dozens of facts for each host; more is a worker that babbles.
_FACTS_KEPT = 20_000


class HeldRecorder:
    """A `Recorder` that only remembers, the newest facts where there are too many."""

    def __init__(self) -> None:
        self._facts: deque[Callable[[Recorder], None]] = deque(maxlen=_FACTS_KEPT)

    def hand_over(self, recorder: Recorder) -> None:
        """Give everything to another recorder, in order."""
        while self._facts:
            self._facts.popleft()(recorder)

    def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
        """Hold a line."""
        self._facts.append(lambda to: to.line(stage, host, line, wall_ms))

    def stderr(self, stage: int, host: str, text: bytes) -> None:
        """Hold what was written to stderr."""
        self._facts.append(lambda to: to.stderr(stage, host, text))

    def op(self, record: OpRecord) -> None:
        """Hold an op."""
        self._facts.append(lambda to: to.op(record))

    def exit(self, record: ExitRecord) -> None:
        """Hold the end of a process."""
        self._facts.append(lambda to: to.exit(record))

    def failure(self, record: FailureRecord) -> None:
        """Hold a failure."""
        self._facts.append(lambda to: to.failure(record))

    def request(self, record: RequestRecord) -> None:
        """Hold a request."""
        self._facts.append(lambda to: to.request(record))

    def recovery(self, record: RecoveryRecord) -> None:
        """Hold an attempt to bring a stage back."""
        self._facts.append(lambda to: to.recovery(record))
