"""Stage specs for tests, deadlines that suit them, and a recorder that remembers."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.bundle.records import (
    ExitRecord,
    FailureRecord,
    OpRecord,
    RecoveryRecord,
    RequestRecord,
)
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.timeouts import Timeouts

ROOT = Path(__file__).resolve().parents[2]
# Long enough for a loaded machine; what must be short is short.
PATIENT = Timeouts(
    hello_s=30,
    ready_s=30,
    op_s=30,
    silence_s=20,
    exit_s=10,
    mute_s=10,
    half_closed_s=0.5,
    tick_s=0.05,
)


def stub_spec(stage: int = 0, num_stages: int = 1, **changes: Any) -> StageSpec:
    """Return a local stub worker."""
    return StageSpec(
        stage=stage, num_stages=num_stages, options=WorkerOptions(stub=True), **changes
    )


def stub_specs(num_stages: int) -> list[StageSpec]:
    """Return a pipeline of local stub workers."""
    return [stub_spec(stage, num_stages) for stage in range(num_stages)]


def peer_spec(name: str, stage: int = 0, num_stages: int = 1) -> StageSpec:
    """Return a stage that runs a peer of `tests.support.peers` in place of a worker."""
    program = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", f"tests.support.peers.{name}")
    return StageSpec(
        stage=stage, num_stages=num_stages, host=name, transport="command", command=program
    )


def odd_spec(stage: int = 0, num_stages: int = 1) -> StageSpec:
    """Return a real worker whose tokenizer does what its prompt says; see `odd_worker`."""
    shift = 'while [ "$1" != worker ]; do shift; done; shift'
    program = Path(__file__).with_name("odd_worker.py")
    script = f'{shift}; PYTHONPATH="{ROOT}" exec "{sys.executable}" "{program}" "$@"'
    return StageSpec(
        stage=stage,
        num_stages=num_stages,
        host="odd",
        transport="command",
        code="installed",
        command=("sh", "-c", script, "sh"),
        options=WorkerOptions(stub=True),
    )


@dataclass
class MemoryRecorder:
    """Keep every record in lists."""

    lines: list[bytes] = field(default_factory=list)
    stderr_bytes: int = 0
    stderr_text: bytes = b""
    ops: list[OpRecord] = field(default_factory=list)
    exits: list[ExitRecord] = field(default_factory=list)
    failures: list[FailureRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    recoveries: list[RecoveryRecord] = field(default_factory=list)

    def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
        self.lines.append(line)

    def stderr(self, stage: int, host: str, text: bytes) -> None:
        self.stderr_bytes += len(text)
        self.stderr_text = (self.stderr_text + text)[-65536:]

    def op(self, record: OpRecord) -> None:
        self.ops.append(record)

    def exit(self, record: ExitRecord) -> None:
        self.exits.append(record)

    def failure(self, record: FailureRecord) -> None:
        self.failures.append(record)

    def request(self, record: RequestRecord) -> None:
        self.requests.append(record)

    def recovery(self, record: RecoveryRecord) -> None:
        self.recoveries.append(record)
