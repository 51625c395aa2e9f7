"""What a stage waits for before it loads: its code, then its variables; nothing before it asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.failures import SpawnFailed
from orchestrator.specs import StageSpec
from orchestrator.stage.inbox import BrokenRule
from orchestrator.stage.notes import StageNotes
from orchestrator.stage.scribe import Scribe
from orchestrator.start_causes import why_not_booted
from orchestrator.transport.base import StageProcess
from orchestrator.transport.shipping import BootLine, worker_archive
from worker.protocol.events import Starting
from worker.protocol.ops import Environment, Request

GIVEN_ID = "stageline:environment"


def answer_first(
    line: BootLine | Starting,
    spec: StageSpec,
    process: StageProcess,
    tell: Callable[[StageProcess, Request[Any]], None],
    notes: StageNotes,
    scribe: Scribe,
) -> None:
    """Answer one of the first lines of a stage.

    Args:
        line: what it said.
        tell: sends a request whose reply nobody waits for.

    Raises:
        BrokenRule: there will be no worker.
        PipeClosed: it does not read any more.
    """
    if isinstance(line, Starting):
        if spec.secrets:
            tell(process, Environment(request_id=GIVEN_ID, variables=dict(spec.secrets)))
    elif line.word == "need":
        archive = worker_archive()
        notes.note(f"sending {len(archive.data) / 1e3:.0f} kB of code")
        scribe.note(f"sent {len(archive.data)} bytes of code, {archive.digest}")
        process.write(archive.data)
    elif line.word == "have":
        notes.note("starting")
    else:
        was_cut = line.word == "eof" and line.rest != "0"
        cause = why_not_booted(line, spec.transport, spec.python)
        raise BrokenRule(cause, SpawnFailed, may_pass=was_cut)
