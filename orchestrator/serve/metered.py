"""A Recorder that counts what passes: how busy each stage is, its bytes, its failures."""

from __future__ import annotations

import re
import time
from collections import deque

from orchestrator.bundle.records import (
    ExitRecord,
    FailureRecord,
    OpRecord,
    Recorder,
    RecoveryRecord,
    RequestRecord,
)
from orchestrator.serve.meters import Meters
from worker.protocol.codec import is_op_event

SHARE_S = 10.0
# Every op has such a line; to decode them all would be a tenth of what an op costs here.
_DURATION_MS = re.compile(rb'"duration_ms":\s*([0-9]+(?:\.[0-9]+)?)')


class BusyShare:
    """What share of the last `SHARE_S` seconds a stage has computed, in steps of one second."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, float]] = deque()  # second, busy seconds that ended in it

    def add(self, busy_s: float) -> None:
        """Count work that has ended now."""
        second = int(time.monotonic())
        if self._seconds and self._seconds[-1][0] == second:
            busy_s += self._seconds.pop()[1]
        self._seconds.append((second, busy_s))
        self._forget()

    def share(self) -> float:
        """Return the share, 0 to 1."""
        self._forget()
        return min(1.0, sum(busy_s for _, busy_s in self._seconds) / SHARE_S)

    def _forget(self) -> None:
        oldest_s = time.monotonic() - SHARE_S
        while self._seconds and self._seconds[0][0] < oldest_s:
            self._seconds.popleft()


class MeteredRecorder:
    """Hands everything on, and counts.

    How long a stage computed is what its worker tells; waiting in pipes and queues is no work.

    Attributes:
        shares: of each stage, how busy it was in the last seconds.
    """

    def __init__(self, recorder: Recorder, meters: Meters) -> None:
        self._recorder = recorder
        self._meters = meters
        self.shares: dict[int, BusyShare] = {}

    def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
        """Count the time that a worker tells of an op."""
        self._recorder.line(stage, host, line, wall_ms)
        if not is_op_event(line):
            return
        if (found := _DURATION_MS.search(line)) is not None:
            busy_s = float(found[1]) / 1e3
            self._meters.stage_busy_s.labels(str(stage), host).inc(busy_s)
            self._share(stage).add(busy_s)

    def op(self, record: OpRecord) -> None:
        """Count the op and its bytes."""
        self._recorder.op(record)
        stage, meters = str(record.stage), self._meters
        meters.stage_ops.labels(stage, record.host, record.op).inc()
        meters.stage_sent_bytes.labels(stage, record.host).inc(record.sent_bytes)
        meters.stage_received_bytes.labels(stage, record.host).inc(record.received_bytes)

    def stderr(self, stage: int, host: str, text: bytes) -> None:
        """Hand it on."""
        self._recorder.stderr(stage, host, text)

    def exit(self, record: ExitRecord) -> None:
        """Hand it on."""
        self._recorder.exit(record)

    def failure(self, record: FailureRecord) -> None:
        """Count the failure."""
        self._recorder.failure(record)
        self._meters.stage_failures.labels(str(record.stage), record.host, record.kind).inc()

    def request(self, record: RequestRecord) -> None:
        """Count an answer by how it ended, and the tokens of its prompt."""
        self._recorder.request(record)
        self._meters.answers.labels(record.finish_reason).inc()
        self._meters.prompt_tokens.inc(record.prompt_tokens)

    def recovery(self, record: RecoveryRecord) -> None:
        """Count the attempt."""
        self._recorder.recovery(record)
        ok = "true" if record.ok else "false"
        self._meters.stage_restarts.labels(str(record.stage), record.new_host, ok).inc()

    def _share(self, stage: int) -> BusyShare:
        share = self.shares.get(stage)
        if share is None:
            share = self.shares[stage] = BusyShare()
            self._meters.watch_stage(stage, share.share)
        return share
