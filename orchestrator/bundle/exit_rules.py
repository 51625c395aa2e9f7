"""Rules of the diagnosis about processes that ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace

from orchestrator.bundle.cause import Cause
from orchestrator.bundle.evidence import failures, last_words, of_event, of_exit, with_evidence
from orchestrator.bundle.findings import Evidence, Finding, Rank
from orchestrator.bundle.lookup import events
from orchestrator.bundle.memory_signs import short_of_memory
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.records import ExitRecord
from orchestrator.bundle.words import printable
from worker.protocol.events import UncaughtException
from worker.protocol.exits import ExitCode

_LAST_WORDS = "its last words on stderr and the system log of that host may say why"
# By signal: the cause and the next step; any other signal is KILLED.
_SIGNALS = {
    "SIGSEGV": (Cause.NATIVE_CRASH, f"a library crashed in native code: {_LAST_WORDS}"),
    "SIGILL": (
        Cause.NATIVE_CRASH,
        "a library was built for another processor: install one that fits that host",
    ),
    "SIGFPE": (Cause.NATIVE_CRASH, f"a library crashed in native code: {_LAST_WORDS}"),
    "SIGBUS": (
        Cause.BUS_ERROR,
        (
            "a mapped file shrank or its disk failed: check the model's files and that disk "
            "there, or whether something rewrites them; a full /dev/shm does the same"
        ),
    ),
    "SIGABRT": (Cause.ABORTED, f"a library gave up by itself: {_LAST_WORDS}"),
    "SIGTERM": (Cause.ASKED_TO_END, "somebody or a scheduler there asked it to end; find out who"),
    "SIGINT": (Cause.ASKED_TO_END, "somebody there interrupted it"),
    "SIGHUP": (Cause.ASKED_TO_END, "its terminal or connection there was closed"),
}
_OOM_ADVICE = (
    "give the stage fewer layers, a smaller --max-context or --quantization int8 or nf4, or raise "
    "that host's or cgroup's limit; memory=SIZE in the hosts file tells the plan of a limit"
)
_KILLED_ADVICE = (
    "nothing points to memory; see whether `dmesg | grep -i 'killed process'` on that host knows "
    "of it, else somebody or something there killed it"
)


def peer_gone(bundle: Bundle) -> Iterator[Finding]:
    """The stage ended because its other side was gone: never the cause."""
    for kept in bundle.exits:
        end = kept.value
        is_gone = end.exit_code == ExitCode.PEER_GONE or _signal_of(end) == "SIGPIPE"
        if end.expected or not is_gone:
            continue
        text = "ended because the other side of its pipe was gone"
        advice = "look for what ended first"
        yield of_exit(kept, "peer_gone", text, advice, Cause.PEER_GONE, Rank.SYMPTOM)


def killed(bundle: Bundle) -> Iterator[Finding]:
    """A signal ended the process though nobody asked it to end."""
    for kept in bundle.exits:
        end = kept.value
        name = _signal_of(end)
        if name is None or end.expected or _is_client(bundle, end):
            continue
        text = f"was ended by {name}"
        cause, advice = _SIGNALS.get(name, (Cause.KILLED, _LAST_WORDS))
        memory: list[Evidence] = []
        if name == "SIGKILL":
            memory = list(short_of_memory(bundle, end))
            text += ", most likely for want of memory" if memory else ""
            cause = Cause.MEMORY_KILLED if memory else Cause.KILLED
            advice = _OOM_ADVICE if memory else _KILLED_ADVICE
        shown = {item.where for item in memory}
        words = [item for item in last_words(bundle, end.stage) if item.where not in shown]
        yield with_evidence(of_exit(kept, "killed", text, advice, cause), memory, words)


def uncaught(bundle: Bundle) -> Iterator[Finding]:
    """The worker ended by an error that nobody foresaw."""
    for seen in events(bundle, UncaughtException):
        event = seen.event
        text = f"ended by an unexpected {event.error_type}: {printable(event.error)}"
        advice = "this is a defect of the worker: the traceback is in the bundle"
        is_memory = event.error_type == "MemoryError"
        cause = Cause.MEMORY_EXHAUSTED if is_memory else Cause.PYTHON_ERROR
        yield of_event(seen, "uncaught", text, _OOM_ADVICE if is_memory else advice, cause)


def crashed(bundle: Bundle) -> Iterator[Finding]:
    """The process ended though nobody asked it to, and no rule above knows why."""
    advice = "see its stderr in the bundle"
    for finding in failures(bundle, "crashed", advice, Cause.EXITED):
        if " ended before it was done (lease_expired)" in finding.sentence:
            finding = replace(finding, cause=Cause.LINK_LOST)
        yield with_evidence(finding, last_words(bundle, finding.stage))
    for kept in bundle.exits:
        end = kept.value
        if not end.expected and _signal_of(end) is None:
            text = f"ended by itself with exit code {end.exit_code}"
            yield with_evidence(
                of_exit(kept, "crashed", text, advice, Cause.EXITED), last_words(bundle, end.stage)
            )


def killed_at_the_end(bundle: Bundle) -> Iterator[Finding]:
    """A worker did not end when asked and had to be killed, after a run that went well."""
    if bundle.failures or bundle.end is None or bundle.end.exit_code != ExitCode.OK:
        return  # There it was killed at once, on purpose.
    for kept in bundle.exits:
        if kept.value.expected and _signal_of(kept.value) == "SIGKILL":
            text = "did not end when asked and was killed"
            advice = "harmless for the answer; its stderr may say what it was busy with"
            yield of_exit(
                kept, "killed_at_the_end", text, advice, Cause.KILLED_AT_THE_END, Rank.NOTE
            )


def _is_client(bundle: Bundle, end: ExitRecord) -> bool:
    """Tell whether it was the ssh client here: a worker's signal comes as a shell's exit code."""
    planned = {stage.stage: stage.transport for stage in bundle.manifest.stages}
    lost = any(
        kept.value.kind == "host_unreachable" and kept.value.stage == end.stage
        for kept in bundle.failures
    )
    return lost and planned.get(end.stage) == "ssh" and end.exit_code is None


def _signal_of(end: ExitRecord) -> str | None:
    """Return the signal that ended a process; a shell reports signal n as 128 + n."""
    if end.signal is not None or end.exit_code is None:
        return end.signal
    try:
        return signal.Signals(end.exit_code - 128).name
    except ValueError:
        return None
