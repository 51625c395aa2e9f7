"""Rules of the diagnosis about what a stage said itself, or what was noted about it alive."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from orchestrator.bundle.cause import Cause
from orchestrator.bundle.evidence import failures, last_words, of_event, of_failure, with_evidence
from orchestrator.bundle.findings import Evidence, Finding
from orchestrator.bundle.lines import StageLine
from orchestrator.bundle.load_words import load_cause
from orchestrator.bundle.lookup import Seen, events, kind_of
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.words import printable, size
from worker.protocol.codec import Garbage
from worker.protocol.events import (
    CacheVerified,
    DownloadFailed,
    Event,
    Exiting,
    MemoryCheck,
    ModelLoadFailed,
    Starting,
)
from worker.protocol.exits import ExitCode

_REFUSED_ADVICE = (
    "change the option, in the line of that host where it stands there, else on the command line"
)
_LOAD_ADVICE = {
    Cause.PACKAGE_MISSING: "install the package for that host's python, or run `orchestrator "
    "setup --hosts FILE`",
    Cause.DISK_FULL: "make room there (`orchestrator cache ls`, `cache rm`), or name a larger disk "
    "with --cache-dir",
    Cause.HUB_ACCESS_REFUSED: "accept the model's licence on its page and set HF_TOKEN to a token "
    "of that account",
    Cause.MODEL_NOT_FOUND: "check --model-id and --revision; a folder must be at that path on each "
    "host",
    Cause.HUB_UNREACHABLE: "check the network, HTTPS_PROXY and HF_ENDPOINT on that host",
    Cause.WEIGHTS_DAMAGED: "fetch the file again",
    Cause.CACHE_DAMAGED: "run `orchestrator cache verify --repair` and check that disk, then fetch "
    "again",
    Cause.CONFIGURATION_REFUSED: _REFUSED_ADVICE,
    Cause.MODEL_UNSUPPORTED: "choose a model of docs/architectures.md",
    Cause.MEMORY_EXHAUSTED: "give the stage fewer layers, a host with more memory, a smaller "
    "--max-context, or --quantization int8 or nf4",
}
_LIBRARY = re.compile(r"\(needs \d+\.\d+\)")
_OTHER_ADVICE = "check --model-id and --revision, and the files on that host"


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
            Cause.MEMORY_REFUSED,
        )


def cache_damaged(bundle: Bundle) -> Iterator[Finding]:
    """A file of the cache had rotted, and what was fetched in its place did not come either."""
    failed = {seen.stage for seen in events(bundle, ModelLoadFailed)}
    for seen in events(bundle, CacheVerified):
        if seen.event.ok or seen.stage not in failed:
            continue
        failed.remove(seen.stage)
        text = (
            f"found {printable(seen.event.file)} of its cache damaged "
            f"({printable(seen.event.reason or 'no reason given')}) and could not fetch it anew"
        )
        advice = _LOAD_ADVICE[Cause.CACHE_DAMAGED]
        finding = of_event(seen, "cache_damaged", text, advice, Cause.CACHE_DAMAGED)
        # What the user was told is about the fetch that this made necessary.
        yield replace(finding, is_told=True)


def download_failed(bundle: Bundle) -> Iterator[Finding]:
    """The weights could not be fetched."""
    for seen in events(bundle, DownloadFailed):
        text = f"could not fetch its weights: {printable(seen.event.reason)}"
        cause = load_cause(seen.event.reason)
        advice = _LOAD_ADVICE.get(
            cause, "check the model's name, the network and the access token on that host"
        )
        cause = Cause.DOWNLOAD_FAILED if cause is Cause.LOAD_ERROR else cause
        yield of_event(seen, "download_failed", text, advice, cause)


def load_failed(bundle: Bundle) -> Iterator[Finding]:
    """The model could not be read or is not supported."""
    for seen in events(bundle, ModelLoadFailed):
        text = f"could not load its layers: {printable(seen.event.error)}"
        cause = load_cause(seen.event.error, seen.event.error_type)
        if cause is Cause.LOAD_ERROR and _ended_with(bundle, seen, ExitCode.USAGE):
            text = f"refused its options: {printable(seen.event.error)}"
            cause = Cause.CONFIGURATION_REFUSED
        yield of_event(seen, "load_failed", text, _LOAD_ADVICE.get(cause, _OTHER_ADVICE), cause)


def _ended_with(bundle: Bundle, seen: Seen[ModelLoadFailed], code: ExitCode) -> bool:
    """Tell whether the worker that said so ended with a code, by its own last line."""
    ends = (end for end in events(bundle, Exiting, seen.stage) if end.wall_ms >= seen.wall_ms)
    first = next(ends, None)
    return first is not None and first.event.code == code


def protocol_violation(bundle: Bundle) -> Iterator[Finding]:
    """The stage wrote what the protocol does not allow."""
    advice = "look for something on that host that prints to stdout; see stderr of the stage"
    for finding in failures(bundle, "protocol_violation", advice, Cause.PROTOCOL_VIOLATION):
        junk = [
            Evidence(kept.where, printable(kept.value.raw))
            for kept in bundle.lines
            if kept.value.stage == finding.stage
            and isinstance(kept.value.message, Garbage)
            and (finding.phase == "connecting" or _has_spoken(bundle, kept.value))
        ]
        if finding.phase == "connecting":
            finding = replace(
                finding,
                cause=Cause.LOGIN_NOISE,
                advice="make the login scripts there (.bashrc, .profile) print nothing where the "
                "shell is not interactive",
            )
        elif junk:
            finding = replace(finding, cause=Cause.NOISE_ON_STDOUT)
        else:
            finding = replace(
                finding, advice="install the same version on both; this worker breaks the protocol"
            )
        yield with_evidence(finding, junk[-1:])


def _has_spoken(bundle: Bundle, line: StageLine) -> bool:
    """Tell whether the stage had said its first line: before it anything may be printed."""
    return any(seen.wall_ms <= line.wall_ms for seen in events(bundle, Starting, line.stage))


def hung(bundle: Bundle) -> Iterator[Finding]:
    """The stage was there but answered nothing."""
    for finding in failures(bundle, "hung", "", Cause.SILENT):
        if " did not answer " in finding.sentence:
            advice = (
                "its process lives and answers pings: look at its device (`nvidia-smi`) and at "
                "what it does (`py-spy dump --pid PID` there)"
            )
            yield replace(finding, cause=Cause.OP_STUCK, advice=advice)
        else:
            advice = (
                "look at that host: a stopped process, a suspended or overwhelmed machine, or a "
                "network that drops"
            )
            yield replace(finding, advice=advice)


def not_ready(bundle: Bundle) -> Iterator[Finding]:
    """The stage ran but never served."""
    for finding in failures(bundle, "not_ready", "", Cause.START_TOO_SLOW):
        before = list(events(bundle, Event, finding.stage))
        last = [Evidence(seen.where, f"last event: {kind_of(seen.event)}") for seen in before[-1:]]
        yield with_evidence(_not_ready(finding), last, last_words(bundle, finding.stage))


def _not_ready(finding: Finding) -> Finding:
    advice = "see its last events and its stderr in the bundle"
    if _LIBRARY.search(finding.sentence):
        advice = "run `orchestrator setup --hosts FILE`, or name another Python with python="
        return replace(finding, cause=Cause.LIBRARY_VERSION, advice=advice)
    if " within " in finding.sentence and finding.phase == "connecting":
        return replace(finding, cause=Cause.NO_FIRST_MESSAGE, advice=advice)
    if " within " in finding.sentence:
        return replace(finding, advice=f"{advice}; raise --start-timeout-s if it is only slow")
    if "refused its configuration" in finding.sentence:
        return replace(finding, cause=Cause.CONFIGURATION_REFUSED, advice=_REFUSED_ADVICE)
    cause = load_cause(finding.sentence)
    return replace(finding, cause=cause, advice=_LOAD_ADVICE.get(cause, advice))


def other_failure(bundle: Bundle) -> Iterator[Finding]:
    """A kind of failure that this version does not know."""
    for kept in bundle.failures:
        yield of_failure(kept, "other_failure", "see the failure in the bundle", Cause.OTHER)
