"""What a page tells in words: how the run ended, what happened when, with which options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.bundle.lookup import stages_of
from orchestrator.bundle.manifest import Manifest
from orchestrator.bundle.mask import Masker
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.report import Report
from orchestrator.bundle.words import printable
from worker.protocol.exits import ExitCode

STDERR_LINES = 30


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ended; `kind` is good, odd or bad."""

    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that befell a stage; `kind` is lost, ended, back or failed."""

    at_ms: float
    stage: int
    kind: str
    sentence: str


def verdict_of(report: Report) -> Verdict:
    """Return how the run ended, in a few words."""
    code = report.exit_code
    if not report.has_end:
        return Verdict("odd", "The run left no end: it was killed, or is still going on")
    if code is None:
        return Verdict("odd", "The run ended without an exit code")
    if code == ExitCode.OK:
        back = {recovery.stage for recovery in report.recoveries if recovery.ok}
        if not back:
            return Verdict("good", "The run finished")
        which = "a lost stage was" if len(back) == 1 else f"{len(back)} lost stages were"
        return Verdict("good", f"The run finished; {which} brought back")
    if code > 128:
        return Verdict("odd", f"The run was ended by a signal (exit code {code})")
    return Verdict("bad", f"The run failed (exit code {code})")


def moments_of(bundle: Bundle) -> tuple[Moment, ...]:
    """Return failures, ends that nobody asked for, and recoveries, by time."""
    return tuple(sorted(_moments(bundle), key=lambda moment: moment.at_ms))


def _moments(bundle: Bundle) -> Iterator[Moment]:
    for failure in (kept.value for kept in bundle.failures):
        yield Moment(failure.wall_ms, failure.stage, "lost", failure.sentence)
    told = {(kept.value.stage, kept.value.sentence) for kept in bundle.failures}
    for end in (kept.value for kept in bundle.exits):
        if not end.expected and (end.stage, end.sentence) not in told:
            yield Moment(end.wall_ms, end.stage, "ended", end.sentence)
    for recovery in (kept.value for kept in bundle.recoveries):
        took_ms = (recovery.restart_ms or 0.0) + (recovery.replay_ms or 0.0)
        place = f"stage {recovery.stage} on {recovery.new_host}"
        number = f"try {recovery.attempt} of {recovery.most_attempts}"
        if recovery.ok:
            requests = "1 request" if recovery.requests == 1 else f"{recovery.requests} requests"
            replayed = f"{recovery.tokens} positions of {requests} replayed"
            text, kind = f"{place} serves again ({number}; {replayed})", "back"
        else:
            text, kind = f"{place}: {number} failed: {recovery.error or 'no reason'}", "failed"
        yield Moment(recovery.wall_ms + took_ms, recovery.stage, kind, text)


def config_rows(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Return the options that were set, secrets masked once more."""
    config = Masker().value(dict(manifest.config or {}))
    return tuple(
        (printable(name, 60), printable(value if isinstance(value, str) else json.dumps(value)))
        for name, value in sorted(config.items())
        if value is not None and value != []
    )


def stderr_tails(bundle: Bundle) -> tuple[tuple[int, str, int, str], ...]:
    """Return of each stage that wrote to stderr: its host, how many lines, and the last ones."""
    hosts = stages_of(bundle)
    masker = Masker()
    return tuple(
        (
            stage,
            hosts.get(stage, "?"),
            len(lines),
            "\n".join(masker.text(printable(kept.value)) for kept in lines[-STDERR_LINES:]),
        )
        for stage, lines in bundle.stderr.items()
        if lines
    )
