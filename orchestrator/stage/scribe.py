"""Write down what happens to one stage."""

from __future__ import annotations

import time

from orchestrator.bundle.records import ExitRecord, FailureRecord, OpRecord, Recorder
from orchestrator.failures import StageFailure
from orchestrator.stage.pending import PendingOp
from orchestrator.transport.base import ExitStatus
from worker.protocol.ops import Environment, Ping

_ERROR_CHARS = 500


class Scribe:
    """A Recorder that knows which stage it writes of."""

    def __init__(self, stage: int, host: str, recorder: Recorder) -> None:
        self._stage = stage
        self._host = host
        self._recorder = recorder

    def line(self, line: bytes, wall_ms: float | None = None) -> None:
        """Keep a line of stdout that is no reply, and when it came; None is now."""
        wall_ms = _wall_ms() if wall_ms is None else wall_ms
        self._recorder.line(self._stage, self._host, line, wall_ms)

    def stderr(self, chunk: bytes) -> None:
        """Keep what was written to stderr."""
        self._recorder.stderr(self._stage, self._host, chunk)

    def note(self, text: str) -> None:
        """Keep what this program did, among what the stage's stderr says."""
        line = f"stageline: {text}\n".encode()
        self._recorder.stderr(self._stage, self._host, line)

    def op(
        self,
        op: PendingOp,
        received_bytes: int,
        code: str | None = None,
        error: str | None = None,
    ) -> None:
        """Keep an answered op; pings are many and tell nothing, variables are not told."""
        if isinstance(op.request, (Ping, Environment)):
            return
        self._recorder.op(
            OpRecord(
                stage=self._stage,
                host=self._host,
                op=op.request.op,
                rid=op.request.request_id,
                wall_ms=op.wall_ms,
                duration_ms=op.duration_ms,
                sent_bytes=op.sent_bytes,
                received_bytes=received_bytes,
                ok=code is None,
                code=code,
                error=None if error is None else error[:_ERROR_CHARS],
            )
        )

    def exit(self, status: ExitStatus, failure: StageFailure | None, *, expected: bool) -> None:
        """Keep the end of the process."""
        ended = f"stage {self._stage} on {self._host} ended as asked: {status}"
        self._recorder.exit(
            ExitRecord(
                stage=self._stage,
                host=self._host,
                wall_ms=_wall_ms(),
                exit_code=status.code,
                signal=status.signal,
                expected=expected,
                sentence=ended if failure is None else failure.sentence,
            )
        )

    def failure(self, failure: StageFailure) -> None:
        """Keep a failure."""
        scene = failure.scene
        self._recorder.failure(
            FailureRecord(
                stage=scene.stage,
                host=scene.host,
                kind=failure.kind,
                phase=scene.phase,
                cause=failure.cause,
                sentence=failure.sentence,
                wall_ms=_wall_ms(),
                exit_status=None if scene.exit_status is None else str(scene.exit_status),
                last_events=scene.last_events,
                stderr_tail=scene.stderr_tail,
            )
        )


def _wall_ms() -> float:
    return time.time_ns() / 1e6
