"""What is told of a run of two stages, written by the product's own writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from orchestrator.bundle.manifest import Manifest
from orchestrator.bundle.records import ExitRecord, FailureRecord, OpRecord, StageRecord
from orchestrator.bundle.writer import BundleWriter
from worker.protocol.codec import encode_event
from worker.protocol.events import Envelope, Event, Op

T0_MS = 1_800_000_000_000.0
HOSTS = ("alpha", "beta")


class Tape:
    """What two stages and the orchestrator tell; its clock is in ms since the run began."""

    def __init__(self, path: Path, command: tuple[str, ...] = ("orchestrator", "run")) -> None:
        self.path = path
        stages = tuple(
            StageRecord(stage=i, host=host, transport="ssh") for i, host in enumerate(HOSTS)
        )
        manifest = Manifest(command=command, stages=stages, config={"max_new_tokens": 8})
        self.writer = BundleWriter(path, manifest)
        self.now_ms = 0.0
        self.clock_off_ms: dict[int, float] = {}

    def at(self, now_ms: float) -> Self:
        self.now_ms = now_ms
        return self

    def event(self, stage: int, event: Event) -> None:
        wall_ms = T0_MS + self.now_ms
        told_ms = wall_ms + self.clock_off_ms.get(stage, 0)
        envelope = Envelope(stage=stage, wall_ms=told_ms, uptime_ms=self.now_ms - 10)
        self.writer.line(stage, HOSTS[stage], encode_event(event, envelope), wall_ms + 1)

    def op(
        self, stage: int, op: str, *, wire_ms: float = 2, idle_ms: float = 9, own_ms: float = 5
    ) -> None:
        """One op that the worker computed for `own_ms`; the clock goes on."""
        self.now_ms += 10
        self.sent(stage, op, duration_ms=own_ms + wire_ms)
        self.now_ms += own_ms + wire_ms
        self.event(
            stage,
            Op(
                op=op,
                rid="r1",
                duration_ms=own_ms,
                idle_ms_before=idle_ms,
                ok=True,
                in_bytes=100,
                out_bytes=200,
            ),
        )

    def sent(self, stage: int, op: str, duration_ms: float, code: str | None = None) -> None:
        self.writer.op(
            OpRecord(
                stage=stage,
                host=HOSTS[stage],
                op=op,
                rid="r1",
                wall_ms=T0_MS + self.now_ms,
                duration_ms=duration_ms,
                sent_bytes=100,
                received_bytes=200,
                ok=code is None,
                code=code,
            )
        )

    def fail(self, stage: int, kind: str, text: str, phase: str = "loading") -> None:
        self.writer.failure(
            FailureRecord(
                stage=stage,
                host=HOSTS[stage],
                kind=kind,
                phase=phase,
                cause=text,
                sentence=f"stage {stage} on {HOSTS[stage]} {text}",
                wall_ms=T0_MS + self.now_ms,
            )
        )

    def ended(
        self,
        stage: int,
        *,
        code: int | None = None,
        signal: str | None = None,
        expected: bool = False,
    ) -> None:
        self.writer.exit(
            ExitRecord(
                stage=stage,
                host=HOSTS[stage],
                wall_ms=T0_MS + self.now_ms,
                exit_code=code,
                signal=signal,
                expected=expected,
                sentence=f"stage {stage} on {HOSTS[stage]} ended",
            )
        )

    def stderr(self, stage: int, text: str) -> None:
        self.writer.stderr(stage, HOSTS[stage], text.encode())

    def close(self, exit_code: int | None, error: str | None = None) -> None:
        """End the run (None: it was killed) and give its clock and its place fixed values."""
        if exit_code is not None:
            self.writer.close(exit_code, error)
            self.edit("end.json", {"wall_ms": T0_MS + self.now_ms})
        else:
            self.writer.close()
            (self.path / "end.json").unlink()
        fixed = {"started": "2027-01-15T08:00:00.000+00:00", "wall_ms": T0_MS, "python": "3.11.7"}
        fixed |= {"platform": "linux x86_64", "host": "hub", "pid": 4711, "version": "0.1.0"}
        self.edit("manifest.json", fixed)

    def edit(self, name: str, changes: dict[str, Any]) -> None:
        values = json.loads((self.path / name).read_text()) | changes
        (self.path / name).write_text(json.dumps(values, indent=1) + "\n")
