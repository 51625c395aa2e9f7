"""Rules of the diagnosis about what a stage said itself, or what was noted about it alive."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.bundle.evidence import failures, last_words, of_event, of_failure, with_evidence
from orchestrator.bundle.findings import Evidence, Finding
from orchestrator.bundle.lookup import events, kind_of
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.words import printable, size
from worker.protocol.codec import Garbage, major
from worker.protocol.events import DownloadFailed, Event, MemoryCheck, ModelLoadFailed, Starting


def memory_refused(bundle: Bundle) -> Iterator[Finding]:
    """The stage would not have fitted, and said so before it loaded anything."""
    for seen in events(bundle, MemoryCheck):
        check = seen.event
        if check.fits:
            continue
        yield of_event(
            seen,
            "memory_refused",
            f"needs {size(check.need_bytes)} on {check.device} (weights "
            f"{size(check.weights_bytes)}, KV {size(check.kv_bytes)}, scratch "
            f"{size(check.scratch_bytes)}, libraries {size(check.process_bytes)}) but "
            f"{size(check.free_bytes)} are free ({check.limit})",
            "give the stage fewer layers or a host with more memory, a smaller --max-context, or "
            "--quantization int8 or nf4",
        )


def version_mismatch(bundle: Bundle) -> Iterator[Finding]:
    """The two ends speak different protocols."""
    advice = "install the same version of stageline on both hosts"
    ours = bundle.manifest.protocol_version
    for seen in events(bundle, Starting):
        theirs = seen.event.protocol_version
        if ours and major(theirs) != major(ours):
            text = f"speaks protocol {theirs}, the orchestrator {ours}"
            yield of_event(seen, "version_mismatch", text, advice)
    yield from failures(bundle, "version_mismatch", advice)


def download_failed(bundle: Bundle) -> Iterator[Finding]:
    """The weights could not be fetched."""
    for seen in events(bundle, DownloadFailed):
        text = f"could not fetch its weights: {printable(seen.event.reason)}"
        advice = "check the model's name, the network and the access token on that host"
        yield of_event(seen, "download_failed", text, advice)


def load_failed(bundle: Bundle) -> Iterator[Finding]:
    """The model could not be read or is not supported."""
    for seen in events(bundle, ModelLoadFailed):
        text = f"could not load its layers: {printable(seen.event.error)}"
        advice = "check --model-id and --revision, and the files on that host"
        yield of_event(seen, "load_failed", text, advice)


def unreachable(bundle: Bundle) -> Iterator[Finding]:
    """SSH could not connect, or lost the connection."""
    advice = "try the same `ssh` by hand; then check the name, the network and the host key"
    yield from failures(bundle, "host_unreachable", advice)


def spawn_failed(bundle: Bundle) -> Iterator[Finding]:
    """The worker's program never ran."""
    advice = "check `python=` of that host and that stageline is installed for it"
    yield from failures(bundle, "spawn_failed", advice)


def protocol_violation(bundle: Bundle) -> Iterator[Finding]:
    """The stage wrote what the protocol does not allow."""
    advice = "look for something on that host that prints to stdout; see stderr of the stage"
    for finding in failures(bundle, "protocol_violation", advice):
        junk = [
            Evidence(kept.where, printable(kept.value.raw))
            for kept in bundle.lines
            if kept.value.stage == finding.stage and isinstance(kept.value.message, Garbage)
        ]
        yield with_evidence(finding, junk[-1:])


def hung(bundle: Bundle) -> Iterator[Finding]:
    """The stage was there but answered nothing."""
    advice = "look at that host: a stopped process, a device that hangs, a network that drops"
    yield from failures(bundle, "hung", advice)


def not_ready(bundle: Bundle) -> Iterator[Finding]:
    """The stage ran but never served."""
    advice = "see its last events and its stderr in the bundle"
    for finding in failures(bundle, "not_ready", advice):
        before = list(events(bundle, Event, finding.stage))
        last = [Evidence(seen.where, f"last event: {kind_of(seen.event)}") for seen in before[-1:]]
        yield with_evidence(finding, last, last_words(bundle, finding.stage))


def other_failure(bundle: Bundle) -> Iterator[Finding]:
    """A kind of failure that this version does not know."""
    for kept in bundle.failures:
        yield of_failure(kept, "other_failure", "see the failure in the bundle")
