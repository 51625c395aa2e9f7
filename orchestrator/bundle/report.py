"""Everything `bundle show` tells, as one value; the text and the JSON are two prints of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.bundle.diagnose import diagnose
from orchestrator.bundle.findings import Finding, Rank
from orchestrator.bundle.lookup import last_ms, stages_of
from orchestrator.bundle.manifest import Manifest
from orchestrator.bundle.processes import processes_of
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.records import RecoveryRecord, RequestRecord
from orchestrator.bundle.spans import Busy, busy_of, spans_of
from orchestrator.bundle.stage_facts import StageFacts, facts_of
from orchestrator.bundle.startup import Start, starts_of
from orchestrator.bundle.timings import OpTiming, op_timings
from worker.protocol.events import Event
from worker.protocol.exits import ExitCode
from worker.protocol.schema import to_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A bundle, digested. `findings` has the first cause first."""

    path: str
    manifest: Manifest
    exit_code: int | None
    has_end: bool
    duration_ms: float
    stages: tuple[StageFacts, ...]
    starts: tuple[Start, ...]
    ops: tuple[OpTiming, ...]
    busy: tuple[Busy, ...]
    requests: tuple[RequestRecord, ...]
    recoveries: tuple[RecoveryRecord, ...]
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]

    @property
    def cause(self) -> Finding | None:
        """What went wrong first, if anything did."""
        first = self.findings[0] if self.findings else None
        return first if first is not None and first.rank < Rank.NOTE else None

    @property
    def all_clear(self) -> str:
        """What is said of a run without a cause."""
        if not self.findings:
            return "No fault was found"
        if self.exit_code == ExitCode.OK:
            return "No fault was found that the answer suffered from"
        return "No fault was found"


def report_of(bundle: Bundle) -> Report:
    """Digest a bundle."""
    hosts = stages_of(bundle)
    processes = processes_of(bundle)
    told: dict[int, list[Event]] = {stage: [] for stage in hosts}
    for process in processes:
        told[process.stage] += [seen.event for seen in process.seen]
    end_ms = bundle.end.wall_ms if bundle.end and bundle.end.wall_ms else last_ms(bundle)
    return Report(
        path=str(bundle.path),
        manifest=bundle.manifest,
        exit_code=bundle.end.exit_code if bundle.end else None,
        has_end=bundle.end is not None,
        duration_ms=max(0.0, end_ms - (bundle.manifest.wall_ms or end_ms)),
        stages=tuple(facts_of(bundle, stage, host, told[stage]) for stage, host in hosts.items()),
        starts=tuple(starts_of(processes, bundle.manifest.wall_ms)),
        ops=op_timings(bundle),
        busy=busy_of(spans_of(processes)),
        requests=tuple(kept.value for kept in bundle.requests),
        recoveries=tuple(kept.value for kept in bundle.recoveries),
        findings=diagnose(bundle),
        problems=bundle.problems,
    )


def finding_fields(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON has it."""
    return asdict(finding) | {"rank": finding.rank.name.lower()}


def report_json(report: Report) -> str:
    """Return the report as one JSON object."""
    values: dict[str, Any] = {
        "path": report.path,
        "manifest": to_fields(report.manifest),
        "exit_code": report.exit_code,
        "has_end": report.has_end,
        "duration_ms": report.duration_ms,
        "stages": [asdict(stage) for stage in report.stages],
        "starts": [asdict(start) for start in report.starts],
        "ops": [asdict(op) for op in report.ops],
        "busy": [asdict(busy) | {"share": busy.share} for busy in report.busy],
        "requests": [to_fields(request) for request in report.requests],
        "recoveries": [to_fields(recovery) for recovery in report.recoveries],
        "findings": [finding_fields(finding) for finding in report.findings],
        "problems": report.problems,
    }
    return json.dumps(values, indent=2)


def diagnosis_json(report: Report) -> str:
    """Return the findings alone as one JSON object; `cause` is null for a run that went well."""
    values: dict[str, Any] = {
        "path": report.path,
        "exit_code": report.exit_code,
        "has_end": report.has_end,
        "cause": finding_fields(report.cause) if report.cause else None,
        "findings": [finding_fields(finding) for finding in report.findings],
        "problems": report.problems,
    }
    return json.dumps(values, indent=2)
