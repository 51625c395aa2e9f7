"""Rules of the diagnosis about single requests and about the run as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.bundle.findings import Evidence, Finding, Rank
from orchestrator.bundle.lookup import events, last_ms
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.words import printable
from worker.protocol.events import OpTraceback
from worker.protocol.exits import ExitCode


def op_refused(bundle: Bundle) -> Iterator[Finding]:
    """A stage refused an op, or failed at it, and lives on; the first of each kind counts."""
    told = set()
    for kept in bundle.ops:
        op = kept.value
        key = (op.stage, op.op, op.code)
        if op.ok or op.code is None or key in told:
            continue
        told.add(key)
        traces = [
            Evidence(seen.where, printable(seen.event.traceback.strip().rpartition("\n")[2]))
            for seen in events(bundle, OpTraceback, op.stage)
            if seen.event.op == op.op
        ]
        yield Finding(
            rule="op_refused",
            rank=Rank.REQUEST,
            stage=op.stage,
            host=op.host,
            sentence=f"stage {op.stage} on {op.host} refused {op.op} with `{op.code}`",
            advice="the code is explained in protocol.md; the stage itself lived on",
            at_ms=op.wall_ms + op.duration_ms,
            evidence=(Evidence(kept.where, f"request {op.rid!r}"), *traces[:1]),
        )


def run_without_end(bundle: Bundle) -> Iterator[Finding]:
    """The orchestrator itself was killed."""
    if bundle.end is None:
        yield Finding(
            rule="run_without_end",
            rank=Rank.RUN,
            sentence="the run left no end: the orchestrator was killed, or it is still running",
            advice=f"see whether process {bundle.manifest.pid} on {bundle.manifest.host} lives",
            at_ms=last_ms(bundle),
            evidence=(Evidence("end.json", "missing or not readable"),),
        )


def run_failed(bundle: Bundle) -> Iterator[Finding]:
    """The orchestrator ended with an error though no stage was lost, or by Ctrl-C."""
    end = bundle.end
    a_stage_did = bundle.failures or any(not kept.value.expected for kept in bundle.exits)
    if end is not None and end.exit_code and not a_stage_did:
        why = printable(end.error) if end.error else _meaning(end.exit_code)
        yield Finding(
            rule="run_failed",
            rank=Rank.RUN,
            sentence=f"the run ended with exit code {end.exit_code}: {why}",
            advice="`orchestrator --help` lists the exit codes",
            at_ms=end.wall_ms,
            evidence=(Evidence("end.json", f"exit_code {end.exit_code}"),),
        )


def _meaning(exit_code: int) -> str:
    try:
        return ExitCode(exit_code).meaning
    except ValueError:
        return "a signal" if exit_code > 128 else "of no known meaning"
