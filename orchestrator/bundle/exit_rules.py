"""Rules of the diagnosis about processes that ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from orchestrator.bundle.evidence import failures, last_words, of_event, of_exit, with_evidence
from orchestrator.bundle.findings import Evidence, Finding, Rank
from orchestrator.bundle.lookup import events
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.records import ExitRecord
from orchestrator.bundle.words import printable, size
from worker.protocol.events import Device, Event, Heartbeat, ModelLoaded, UncaughtException
from worker.protocol.exits import ExitCode

FULL = 0.9


def peer_gone(bundle: Bundle) -> Iterator[Finding]:
    """The stage ended because its other side was gone: never the cause."""
    for kept in bundle.exits:
        end = kept.value
        is_gone = end.exit_code == ExitCode.PEER_GONE or _signal_of(end) == "SIGPIPE"
        if end.expected or not is_gone:
            continue
        text = "ended because the other side of its pipe was gone"
        yield of_exit(kept, "peer_gone", text, "look for what ended first", Rank.SYMPTOM)


def killed(bundle: Bundle) -> Iterator[Finding]:
    """A signal ended the process though nobody asked it to end."""
    for kept in bundle.exits:
        end = kept.value
        name = _signal_of(end)
        if name is None or end.expected:
            continue
        text = f"was ended by {name}"
        advice = "its last words on stderr and the system log of that host may say why"
        memory: list[Evidence] = []
        if name == "SIGKILL":
            memory = list(_short_of_memory(bundle, end))
            text += ", most likely for want of memory" if memory else ""
            advice = (
                "see whether the kernel's OOM killer did it (`dmesg | grep -i oom` on that host); "
                "if not, somebody killed it"
            )
        yield with_evidence(
            of_exit(kept, "killed", text, advice), memory, last_words(bundle, end.stage)
        )


def uncaught(bundle: Bundle) -> Iterator[Finding]:
    """The worker ended by an error that nobody foresaw."""
    for seen in events(bundle, UncaughtException):
        event = seen.event
        text = f"ended by an unexpected {event.error_type}: {printable(event.error)}"
        advice = "this is a defect of the worker: the traceback is in the bundle"
        yield of_event(seen, "uncaught", text, advice)


def crashed(bundle: Bundle) -> Iterator[Finding]:
    """The process ended though nobody asked it to, and no rule above knows why."""
    advice = "see its stderr in the bundle"
    for finding in failures(bundle, "crashed", advice):
        yield with_evidence(finding, last_words(bundle, finding.stage))
    for kept in bundle.exits:
        end = kept.value
        if not end.expected and _signal_of(end) is None:
            text = f"ended by itself with exit code {end.exit_code}"
            yield with_evidence(
                of_exit(kept, "crashed", text, advice), last_words(bundle, end.stage)
            )


def killed_at_the_end(bundle: Bundle) -> Iterator[Finding]:
    """A worker did not end when asked and had to be killed, after a run that went well."""
    if bundle.failures or bundle.end is None or bundle.end.exit_code != ExitCode.OK:
        return  # There it was killed at once, on purpose.
    for kept in bundle.exits:
        if kept.value.expected and _signal_of(kept.value) == "SIGKILL":
            text = "did not end when asked and was killed"
            advice = "harmless for the answer; its stderr may say what it was busy with"
            yield of_exit(kept, "killed_at_the_end", text, advice, Rank.NOTE)


def _signal_of(end: ExitRecord) -> str | None:
    """Return the signal that ended a process; a shell reports signal n as 128 + n."""
    if end.signal is not None or end.exit_code is None:
        return end.signal
    try:
        return signal.Signals(end.exit_code - 128).name
    except ValueError:
        return None


def _short_of_memory(bundle: Bundle, end: ExitRecord) -> Iterator[Evidence]:
    """Yield what makes it likely that the kernel killed the process for its memory."""
    for kept in bundle.stderr.get(end.stage, ())[-20:]:
        if "out of memory" in kept.value.lower() or "cannot allocate memory" in kept.value.lower():
            yield Evidence(kept.where, printable(kept.value))
    devices = [seen.event for seen in events(bundle, Device, end.stage)]
    total_bytes = devices[-1].total_bytes if devices and devices[-1].device == "cpu" else None
    held = [
        (seen.event.rss_mb, seen.where)
        for seen in events(bundle, Event, end.stage)
        if isinstance(seen.event, (ModelLoaded, Heartbeat))
    ]
    for rss_mb, where in held[-1:]:
        if total_bytes and rss_mb * 1e6 >= FULL * total_bytes:
            text = f"the process held {size(rss_mb * 1e6)} of the host's {size(total_bytes)}"
            yield Evidence(where, text)
