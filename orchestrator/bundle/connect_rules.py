"""Rules of the diagnosis about stages that were never reached, or whose link was lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from orchestrator.bundle.cause import Cause
from orchestrator.bundle.evidence import failures, last_words, of_event
from orchestrator.bundle.evidence import with_evidence as also
from orchestrator.bundle.findings import Finding
from orchestrator.bundle.lookup import events, exit_near
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.ssh_words import ssh_meaning
from worker.protocol.codec import major
from worker.protocol.events import Starting

_SPAWN_ADVICE = {
    Cause.PYTHON_MISSING: "give the absolute path of a Python there with python=, or run "
    "`orchestrator setup --hosts FILE`",
    Cause.PROGRAM_NOT_ALLOWED: "check that file's permissions (`ls -l`) and that its disk is not "
    "mounted noexec",
    Cause.PYTHON_TOO_OLD: "install Python 3.11 or newer there, and name it with python=",
    Cause.LAUNCHER_FAILED: "try the launcher's command by hand; it must pass stdin on "
    "(`docker exec -i`, `kubectl exec -i`)",
    Cause.LOGIN_REFUSED: "log in by hand once; the account must be open",
    Cause.DISK_FULL: "make room in the home folder there",
    Cause.WORKER_MISSING: "leave code=installed away, or install stageline for that python",
    Cause.LOGIN_ENDED: "the login there ends before it runs anything: look for `exit` or `exec` in "
    "its .bashrc and .profile, or a forced command in authorized_keys",
}
# Of what was written there, or told the user, the surest first.
_SPAWN_WORDS = (
    (r"No module named '?worker|has no stageline", Cause.WORKER_MISSING),
    (r"unknown option:? -P|older than 3\.|is too old", Cause.PYTHON_TOO_OLD),
    (r"expired password|password has expired|locked or expired account", Cause.LOGIN_REFUSED),
    (r"takes no commands|no commands of ours|replaces the shell", Cause.LOGIN_ENDED),
    (r"launcher|no such running container|no such pod|in that container", Cause.LAUNCHER_FAILED),
    (r"free some space", Cause.DISK_FULL),
)


def version_mismatch(bundle: Bundle) -> Iterator[Finding]:
    """The two ends speak different protocols, or are of different versions."""
    advice = "leave code=installed away for that host, or install the same version on both"
    ours = bundle.manifest.protocol_version
    for seen in events(bundle, Starting):
        theirs = seen.event.protocol_version
        if ours and major(theirs) != major(ours):
            text = f"speaks protocol {theirs}, the orchestrator {ours}"
            yield of_event(seen, "version_mismatch", text, advice, Cause.VERSION_MISMATCH)
    yield from failures(bundle, "version_mismatch", advice, Cause.VERSION_MISMATCH)


def unreachable(bundle: Bundle) -> Iterator[Finding]:
    """SSH could not connect, or lost the connection."""
    for finding in failures(bundle, "host_unreachable", "", Cause.SSH_FAILED):
        yield also(_unreachable(bundle, finding), last_words(bundle, finding.stage))


def _unreachable(bundle: Bundle, finding: Finding) -> Finding:
    if "lost its SSH connection" in finding.sentence or finding.phase != "connecting":
        advice = "see whether the host and the network are up; ssh's last words are in its stderr"
        return replace(finding, cause=Cause.LINK_LOST, advice=advice)
    if "no first message" in finding.sentence:
        advice = (
            f"log in by hand (`ssh {finding.host} true`): a login that asks or hangs never ends"
        )
        return replace(finding, cause=Cause.NO_FIRST_MESSAGE, advice=advice)
    said = [kept.value for kept in bundle.stderr.get(finding.stage or 0, ())]
    meaning = ssh_meaning("\n".join([*said[-40:], finding.sentence]))
    return replace(
        finding, cause=meaning.cause, advice=meaning.advice.replace("{host}", finding.host)
    )


def spawn_failed(bundle: Bundle) -> Iterator[Finding]:
    """The worker's program never ran."""
    for finding in failures(bundle, "spawn_failed", "", Cause.SPAWN_FAILED):
        end = exit_near(bundle, finding.stage, finding.at_ms)
        said = " ".join(item.text for item in last_words(bundle, finding.stage))
        text = f"{finding.sentence} {said}"
        if end is not None and end.signal is not None:
            continue  # What ended it is for the rules about exits to say.
        cause = _spawn_cause(text, end.exit_code if end else None)
        advice = _SPAWN_ADVICE.get(cause, "start the worker there by hand to see why")
        yield replace(finding, cause=cause, advice=advice)


def _spawn_cause(text: str, exit_code: int | None) -> Cause:
    for pattern, cause in _SPAWN_WORDS:
        if re.search(pattern, text, re.IGNORECASE):
            return cause
    if exit_code == 127:
        return Cause.PYTHON_MISSING
    if exit_code == 126:
        return Cause.PROGRAM_NOT_ALLOWED
    return Cause.LOGIN_ENDED if exit_code == 0 else Cause.SPAWN_FAILED
