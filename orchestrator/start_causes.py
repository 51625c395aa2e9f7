"""Why a worker never spoke: what logins, shells, launchers and interpreters say, and what helps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.failures import NotReady, Scene, SpawnFailed, StageFailure
from orchestrator.transport.base import ExitStatus
from orchestrator.transport.shipping import OLDEST_PYTHON, BootLine
from orchestrator.transport.ssh import SshTarget
from worker.protocol.exits import ExitCode

_OLDEST = ".".join(map(str, OLDEST_PYTHON))
_NO_STDIN = (
    "got the end of its stdin at once; its launcher must pass stdin on, as 'docker exec -i' and "
    "'kubectl exec -i' do"
)


@dataclass(frozen=True, slots=True)
class Silent:
    """A process that ended before its first line.

    Attributes:
        transport: "local", "ssh" or "command".
        stderr_lines, noise: what it wrote to stderr, and to stdout.
        ssh: where it was logged in.
        python: the interpreter that was asked for, or None.
    """

    scene: Scene
    transport: str
    stderr_lines: Sequence[str]
    noise: Sequence[str]
    last_words: str
    ssh: SshTarget | None = None
    python: str | None = None

    @property
    def status(self) -> ExitStatus:
        """How it ended."""
        return self.scene.exit_status or ExitStatus(None)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is written where a worker cannot start.

    Attributes:
        transport: what writes it, "" for any.
        pattern: found in stderr, or in stdout.
        cause: verb phrase; `{by_hand}` is the command to log in with, `{user}` the user there.
        may_pass: whether another try may go better.
    """

    transport: str
    pattern: str
    cause: str
    may_pass: bool = False


_KNOWN: tuple[_Known, ...] = (
    _Known(
        "",
        r"No module named '?worker\b",
        "has no stageline for that python; leave code=installed away for that host, install "
        "stageline there, or give python= or env.PYTHONPATH=",
    ),
    _Known(
        "",
        r"unknown option:? -P",
        f"has a python older than {_OLDEST}; give python= for that host",
    ),
    _Known(
        "ssh",
        r"password has expired|Password change required|expired password",
        "has an expired password for {user}; run '{by_hand}' once and set a new one",
    ),
    _Known(
        "ssh",
        r"account has expired|account is (locked|disabled)",
        "has a locked or expired account for {user}; have it opened there, or give another user@",
    ),
    _Known(
        "ssh",
        r"account is currently not available|no login(s)? allowed|nologin",
        "has a login shell for {user} that takes no commands; give it one there with 'chsh -s "
        "/bin/sh {user}', or give another user@",
    ),
    _Known(
        "ssh",
        r"interactive logins? only|only interactive|restricted shell|rbash",
        "lets {user} run no commands of ours; give another user@, or a shell like /bin/sh",
    ),
    _Known(
        "command",
        r"No such container|is not running|container .* (not found|is stopped|exited)",
        "has no such running container; look with 'docker ps -a' and start it",
        may_pass=True,
    ),
    _Known(
        "command",
        r"pods? \"?.*\"? not found|NotFound|container not found|container .* is not valid for pod",
        "has no such pod or container; look with 'kubectl get pods'",
        may_pass=True,
    ),
    _Known(
        "command",
        r"(docker daemon|docker\.sock|connection to the server .* was refused|Unable to connect)",
        "cannot be reached: its launcher finds no server; check that the daemon or the cluster is "
        "up and that you may use it",
        may_pass=True,
    ),
    _Known(
        "command",
        r"executable file not found|OCI runtime exec failed|no such file or directory: unknown",
        "has not the program to run in that container; use an image with sh, env and python "
        f"{_OLDEST}, or give python=",
    ),
)


def why_silent(end: Silent) -> StageFailure:
    """Return the failure that explains why a process ended before its first line."""
    written = "\n".join((*end.stderr_lines, *end.noise))
    for known in _KNOWN:
        is_its = known.transport in ("", end.transport)
        if is_its and re.search(known.pattern, written, re.IGNORECASE):
            cause = known.cause.format(**_names(end))
            return SpawnFailed(end.scene, cause, may_pass=known.may_pass)
    scene, status, words = end.scene, end.status, end.last_words
    said = f": {words}" if words else " and no message"
    if status.code == 127:
        return SpawnFailed(scene, _not_found(end, said))
    if status.code == 126:
        return SpawnFailed(scene, f"may not run the program{said}; check its permissions")
    if status.signal is not None:
        cause = f"was ended by {status.signal} before its first line{said}"
        return SpawnFailed(scene, cause, may_pass=True)
    if status.code == ExitCode.USAGE:
        return NotReady(scene, f"refused its configuration{said}", ExitCode.USAGE)
    return SpawnFailed(
        scene, f"ended with {status} before its first line{said}; {_by_hand(end)}", may_pass=False
    )


def why_not_booted(line: BootLine, transport: str, python: str | None = None) -> str:
    """Return why shipped code was not started, as a verb phrase.

    Args:
        line: what the host said.
        transport: how it was started.
        python: the interpreter that the host's line names, which setup would leave alone.
    """
    if line.word == "old":
        step = f"leave python={python} out of its line and run" if python is not None else "run"
        return (
            f"has python {line.rest}, which is too old: a worker needs {_OLDEST}; {step} "
            "'orchestrator setup' for that host, or give python= of a newer one"
        )
    if line.word == "eof" and transport == "command" and line.rest == "0":
        return _NO_STDIN
    if line.word == "eof":
        return f"lost its stdin after {line.rest} bytes of the worker's code; try again"
    return f"cannot take the worker's code: {line.rest}; free some space there"


def lost_stdin(transport: str, reason: str) -> str | None:
    """Return why a worker behind a launcher saw the end of its stdin, as a verb phrase, or None."""
    if transport != "command" or reason != "stdin_eof":
        return None
    return f"{_NO_STDIN}, or its connection broke"


def _not_found(end: Silent, said: str) -> str:
    if end.python is None and "python3" in said:
        return (
            f"has no python3; install python {_OLDEST} there, run 'orchestrator setup' for that "
            "host, or give python="
        )
    return f"did not find the program to run{said}; give an absolute python= path"


def _by_hand(end: Silent) -> str:
    if end.ssh is None:
        return "start the worker there by hand"
    return (
        f"see what '{end.ssh.by_hand} true' prints, and whether a login script such as ~/.bashrc "
        "there ends or replaces the shell"
    )


def _names(end: Silent) -> dict[str, str]:
    if end.ssh is None:
        return {"by_hand": "", "user": ""}
    return {"by_hand": end.ssh.by_hand, "user": end.ssh.user or "that user"}
