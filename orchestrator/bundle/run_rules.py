"""Rules of the diagnosis about single requests and about the run as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.bundle.cause import Cause
from orchestrator.bundle.findings import Evidence, Finding, Rank
from orchestrator.bundle.lookup import events, last_ms
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.records import OpRecord
from orchestrator.bundle.words import printable
from worker.protocol.events import OpTraceback
from worker.protocol.exits import ExitCode
from worker.protocol.schema import ErrorCode

_CODES = {
    str(ErrorCode.CONTEXT_FULL): (
        Cause.CONTEXT_FULL,
        "shorten the prompt or --max-new-tokens, or raise --max-context",
    ),
    str(ErrorCode.OUT_OF_MEMORY): (
        Cause.OP_OUT_OF_MEMORY,
        "give the stage fewer layers, or use a smaller --prefill-chunk or --max-context",
    ),
    str(ErrorCode.INTERNAL): (
        Cause.OP_ERROR,
        "this is a defect of the worker or the model's code: the traceback is in the bundle",
    ),
}
_NOT_FINITE = re.compile(r"\bnan or inf\b")


def op_refused(bundle: Bundle) -> Iterator[Finding]:
    """A stage refused an op, or failed at it, and lives on; the first of each kind counts."""
    told = set()
    done_ms = {_asked(kept.value): kept.value.wall_ms for kept in bundle.ops if kept.value.ok}
    for kept in bundle.ops:
        op = kept.value
        key = (op.stage, op.op, op.code)
        if op.ok or op.code is None or key in told:
            continue
        if op.code == ErrorCode.NO_SESSION and done_ms.get(_asked(op), -1.0) >= op.wall_ms:
            continue  # A cache that was freed for memory: it was rebuilt, and the op asked again.
        told.add(key)
        traces = [
            Evidence(seen.where, printable(seen.event.traceback.strip().rpartition("\n")[2]))
            for seen in events(bundle, OpTraceback, op.stage)
            if seen.event.op == op.op
        ]
        cause, advice = _why_refused(bundle, op)
        why = f": {printable(op.error)}" if op.error else ""
        yield Finding(
            rule="op_refused",
            cause=cause,
            phase=f"serving {op.op}",
            rank=Rank.REQUEST,
            stage=op.stage,
            host=op.host,
            sentence=f"stage {op.stage} on {op.host} refused {op.op} with `{op.code}`{why}",
            advice=advice,
            at_ms=op.wall_ms + op.duration_ms,
            evidence=(Evidence(kept.where, f"request {op.rid!r}"), *traces[:1]),
        )


def _asked(op: OpRecord) -> tuple[object, ...]:
    return op.stage, op.op, op.rid


def _why_refused(bundle: Bundle, op: OpRecord) -> tuple[Cause, str]:
    said = op.error or (bundle.end.error if bundle.end else None) or ""
    if op.code == ErrorCode.INTERNAL and _NOT_FINITE.search(said):
        advice = (
            "check the model's files on that host (`orchestrator cache verify`), and whether "
            "--quantization bfloat16 gives finite numbers"
        )
        return Cause.NOT_FINITE, advice
    other = (
        Cause.OP_REFUSED,
        "the code is explained in protocol.md; the stage itself lived on",
    )
    return _CODES.get(op.code or "", other)


def run_without_end(bundle: Bundle) -> Iterator[Finding]:
    """The orchestrator itself was killed, or could not write its bundle any more."""
    if bundle.end is not None:
        return
    unwritable = bundle.unwritable
    if unwritable is not None:
        sentence = f"the bundle could not be written to its end: {printable(unwritable.value)}"
        advice = "make room there, or name another place with --bundle-dir; the run went on"
        cause, where = Cause.BUNDLE_UNWRITABLE, unwritable.where
    else:
        sentence = "the run left no end: the orchestrator was killed, or it is still running"
        advice = f"see whether process {bundle.manifest.pid} on {bundle.manifest.host} lives"
        cause, where = Cause.NO_END, "end.json"
    yield Finding(
        rule="run_without_end",
        cause=cause,
        rank=Rank.RUN,
        sentence=sentence,
        advice=advice,
        at_ms=last_ms(bundle),
        evidence=(Evidence(where, "end.json is missing or not readable"),),
    )


def interrupted(bundle: Bundle) -> Iterator[Finding]:
    """The user, or a scheduler, ended the run: no fault."""
    end = bundle.end
    if end is not None and end.exit_code is not None and end.exit_code > 128:
        why = printable(end.error) if end.error else "by a signal"
        yield Finding(
            rule="interrupted",
            cause=Cause.INTERRUPTED,
            rank=Rank.NOTE,
            sentence=f"the run was ended from outside: {why}",
            advice="run it again for the whole answer",
            at_ms=end.wall_ms,
            evidence=(Evidence("end.json", f"exit_code {end.exit_code}"),),
        )


def run_failed(bundle: Bundle) -> Iterator[Finding]:
    """The orchestrator ended with an error though no stage was lost."""
    end = bundle.end
    a_stage_did = bundle.failures or any(not kept.value.expected for kept in bundle.exits)
    if end is not None and end.exit_code and end.exit_code <= 128 and not a_stage_did:
        why = printable(end.error) if end.error else _meaning(end.exit_code)
        yield Finding(
            rule="run_failed",
            cause=Cause.USAGE if end.exit_code == ExitCode.USAGE else Cause.RUN_FAILED,
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
        return "of no known meaning"
