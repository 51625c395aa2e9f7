"""Listen to what a run records: when each op was sent, and how long its worker computed."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from orchestrator.bundle.records import (
    ExitRecord,
    FailureRecord,
    OpRecord,
    Recorder,
    RecoveryRecord,
    RequestRecord,
)
from worker.protocol.codec import EventLine, decode_worker_line, is_op_event
from worker.protocol.events import Op
from worker.protocol.ops import RequestId

# What is no part of the way from one token to the next: text, and what frees a cache.
_BESIDE = ("ping", "shutdown", "environment", "tokenize", "detokenize", "release")


@dataclass(slots=True)
class TimedOp:
    """One op of a stage.

    Attributes:
        sent_ms: when it was sent, by the orchestrator's clock.
        waited_ms: from then up to its reply.
        compute_ms: of that in the worker; None until its event has come.
    """

    stage: int
    sent_ms: float
    waited_ms: float
    compute_ms: float | None = None

    @property
    def end_ms(self) -> float:
        """When its reply was here."""
        return self.sent_ms + self.waited_ms


class Tap:
    """A Recorder that hands everything on, and keeps the times of ops.

    Ops of one request and kind are answered in order on a stage, each with one event, so the n-th
    of the one belongs to the n-th of the other, whichever is here first.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._ops: list[TimedOp] = []
        self._unmatched: dict[tuple[int, str, RequestId], deque[TimedOp]] = defaultdict(deque)
        self._early: dict[tuple[int, str, RequestId], deque[float]] = defaultdict(deque)

    def between(self, begin_ms: float, end_ms: float) -> list[TimedOp]:
        """Return the ops that were sent in that time, in that order."""
        found = [op for op in self._ops if begin_ms <= op.sent_ms <= end_ms]
        return sorted(found, key=lambda op: op.sent_ms)

    def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
        """Take the time that a worker tells of an op."""
        self._recorder.line(stage, host, line, wall_ms)
        if not is_op_event(line):
            return
        message = decode_worker_line(line)
        if not isinstance(message, EventLine) or not isinstance(event := message.event, Op):
            return
        if event.op in _BESIDE:
            return
        key = (stage, event.op, event.rid)
        if waiting := self._unmatched[key]:
            waiting.popleft().compute_ms = event.duration_ms
        else:
            self._early[key].append(event.duration_ms)

    def op(self, record: OpRecord) -> None:
        """Take the time that the orchestrator saw."""
        self._recorder.op(record)
        if record.op in _BESIDE:
            return
        timed = TimedOp(record.stage, record.wall_ms, record.duration_ms)
        self._ops.append(timed)
        key = (record.stage, record.op, record.rid)
        if early := self._early[key]:
            timed.compute_ms = early.popleft()
        else:
            self._unmatched[key].append(timed)

    def stderr(self, stage: int, host: str, text: bytes) -> None:
        """Hand it on."""
        self._recorder.stderr(stage, host, text)

    def exit(self, record: ExitRecord) -> None:
        """Hand it on."""
        self._recorder.exit(record)

    def failure(self, record: FailureRecord) -> None:
        """Hand it on."""
        self._recorder.failure(record)

    def request(self, record: RequestRecord) -> None:
        """Hand it on."""
        self._recorder.request(record)

    def recovery(self, record: RecoveryRecord) -> None:
        """Hand it on."""
        self._recorder.recovery(record)
