"""One sentence for each way to end: where, when, what is known, what to do."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.causes import Ending, why_ended
from orchestrator.failures import (
    Crashed,
    HostUnreachable,
    NotReady,
    Scene,
    SpawnFailed,
    StageFailure,
)
from orchestrator.ssh_causes import ssh_cause
from orchestrator.start_causes import why_not_booted
from orchestrator.transport.base import ExitStatus
from orchestrator.transport.shipping import BootLine
from orchestrator.transport.ssh import SshTarget
from worker.protocol.events import (
    Event,
    Exiting,
    Heartbeat,
    MemoryCheck,
    ModelLoadFailed,
    UncaughtException,
)

GB = 10**9


def ending(
    status: ExitStatus,
    *events: Event,
    transport: str = "local",
    said_hello: bool = True,
    stderr: tuple[str, ...] = (),
    noise: tuple[str, ...] = (),
    phase: str = "idle",
) -> Ending:
    scene = Scene(stage=1, host="node-b", phase=phase, exit_status=status)
    return Ending(
        scene=scene,
        transport=transport,
        said_hello=said_hello,
        events=events,
        stderr_lines=stderr,
        noise=noise,
    )


def check(need_bytes: int, free_bytes: int) -> MemoryCheck:
    return MemoryCheck(
        device="cpu",
        fits=True,
        weights_bytes=need_bytes,
        kv_bytes=0,
        scratch_bytes=0,
        process_bytes=0,
        need_bytes=need_bytes,
        free_bytes=free_bytes,
        limit="memory",
    )


def by_signal(name: str) -> ExitStatus:
    return ExitStatus(None, name)


CASES: list[tuple[Ending, type[StageFailure], int, str]] = [
    (
        ending(
            ExitStatus(3), ModelLoadFailed(error="no config.json in /m", error_type="LoadFailed")
        ),
        NotReady,
        3,
        "cannot serve: no config.json in /m",
    ),
    (
        ending(
            ExitStatus(255),
            ModelLoadFailed(error="needs 3 GiB, 2 GiB are free", error_type="LoadFailed"),
            Exiting(code=4, reason="load_failed"),
            transport="ssh",
        ),
        NotReady,
        4,
        "cannot serve: needs 3 GiB, 2 GiB are free",
    ),
    (
        ending(ExitStatus(2), said_hello=False, stderr=("usage: worker", "worker: no --stage")),
        NotReady,
        2,
        "refused its configuration: worker: no --stage",
    ),
    (
        ending(ExitStatus(127), said_hello=False, stderr=("env: 'py': No such file",)),
        SpawnFailed,
        5,
        "did not find the program to run: env: 'py': No such file; give an absolute python= path",
    ),
    (
        ending(ExitStatus(126), said_hello=False, stderr=("env: 'py': Permission denied",)),
        SpawnFailed,
        5,
        "may not run the program: env: 'py': Permission denied; check its permissions",
    ),
    (
        ending(ExitStatus(1), said_hello=False, stderr=("python3: No module named worker",)),
        SpawnFailed,
        5,
        (
            "has no stageline for that python; leave code=installed away for that host, install "
            "stageline there, or give python= or env.PYTHONPATH="
        ),
    ),
    (
        ending(ExitStatus(2), said_hello=False, stderr=("Unknown option: -P", "usage: python")),
        SpawnFailed,
        5,
        "has a python older than 3.11; give python= for that host",
    ),
    (
        ending(ExitStatus(7), said_hello=False, noise=("Account expired",)),
        SpawnFailed,
        5,
        (
            "ended with exit code 7 before its first line: Account expired; start the worker there "
            "by hand"
        ),
    ),
    (
        ending(by_signal("SIGKILL"), said_hello=False),
        SpawnFailed,
        5,
        "was ended by SIGKILL before its first line and no message",
    ),
    (
        ending(by_signal("SIGKILL"), phase="serving decode_step"),
        Crashed,
        5,
        (
            "was killed by SIGKILL while serving decode_step: by someone or something on that "
            "host; nothing here points to memory"
        ),
    ),
    (
        ending(by_signal("SIGKILL"), check(14 * GB, 15 * GB), phase="loading"),
        Crashed,
        5,
        (
            "was killed by SIGKILL while loading: likely out of memory: it was to take 14.0 GB of "
            "15.0 GB; use fewer layers there, a quantization, or a smaller --max-context"
        ),
    ),
    (
        ending(
            by_signal("SIGKILL"),
            check(1 * GB, 15 * GB),
            Heartbeat(rss_mb=14_500, requests_served=1),
        ),
        Crashed,
        5,
        (
            "was killed by SIGKILL while idle: likely out of memory: it held 14.5 GB of 15.0 GB; "
            "use fewer layers there, a quantization, or a smaller --max-context"
        ),
    ),
    (
        ending(
            by_signal("SIGKILL"), check(14 * GB, 15 * GB), Heartbeat(rss_mb=900, requests_served=1)
        ),
        Crashed,
        5,
        (
            "was killed by SIGKILL while idle: by someone or something on that host; nothing here "
            "points to memory"
        ),
    ),
    (
        ending(ExitStatus(139, "SIGSEGV"), transport="ssh", stderr=("Segmentation fault",)),
        Crashed,
        5,
        "was killed by SIGSEGV while idle: a crash in native code",
    ),
    (
        ending(ExitStatus(143, "SIGTERM")),
        Crashed,
        5,
        "was killed by SIGTERM while idle: someone on that host asked it to end",
    ),
    (
        ending(
            ExitStatus(1),
            UncaughtException(error="bad shape", error_type="RuntimeError", traceback="…"),
        ),
        Crashed,
        5,
        "crashed while idle: RuntimeError: bad shape; the traceback is in the bundle",
    ),
    (
        ending(ExitStatus(0), Exiting(code=0, reason="stdin_eof")),
        Crashed,
        5,
        "ended by itself while idle (stdin_eof), though nobody had asked it to",
    ),
    (
        ending(ExitStatus(255), transport="ssh", stderr=("client_loop: Broken pipe",)),
        HostUnreachable,
        5,
        (
            "lost its SSH connection; the host, the network or sshd's session ended "
            "(ssh: client_loop: Broken pipe)"
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case[3][:60] for case in CASES])
def test_an_ending_is_explained_in_one_sentence(case: Any) -> None:
    end, kind, exit_code, cause = case
    failure = why_ended(end)
    assert (type(failure), failure.exit_code, str(failure)) == (
        kind,
        exit_code,
        f"stage 1 on node-b {cause}",
    )


@pytest.mark.parametrize(
    ("stderr", "words", "step"),
    [
        ("Host key verification failed.", "SSH host key that is not known", "--accept-new"),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "another SSH host key than known_hosts says",
            "ssh-keygen -R",
        ),
        ("ann@b: Permission denied (publickey).", "refuses the SSH login", "ssh-copy-id"),
        ("ssh: Could not resolve hostname b: unknown", "resolved", "DNS (ssh: Could not"),
        ("ssh: connect to host b port 22: Connection refused", "refuses SSH", "sshd runs there"),
        ("ssh: connect to host b port 22: Connection timed out", "in time", "firewall"),
        ("Connection timed out during banner exchange", "in time", "firewall"),
        ("ssh: connect to host b port 22: No route to host", "over the network", "route"),
        ("kex_exchange_identification: Connection closed", "during the login", "MaxStartups"),
        ("something new", "cannot be reached over SSH", "'ssh HOST'"),
    ],
)
def test_ssh_messages_are_translated_with_the_next_step(stderr: str, words: str, step: str) -> None:
    cause = ssh_cause(stderr.split("\n"), said_hello=False).text
    assert (words in cause, step in cause) == (True, True), cause


CHANGED = """@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @
Offending ED25519 key in /home/ann/my known:3
Host key for [127.0.0.1]:24722 has changed and you have requested strict checking.
Host key verification failed."""


@pytest.mark.parametrize(
    ("stderr", "target", "command"),
    [
        (
            CHANGED,
            SshTarget(host="alpha"),
            "\"ssh-keygen -f '/home/ann/my known' -R '[127.0.0.1]:24722'\"",
        ),
        (
            "Permission denied",
            SshTarget(host="alpha", user="ann", port=2222, ssh_command="ssh -F cfg -oUser=x"),
            "with 'ssh-copy-id -F cfg -o User=x -p 2222 ann@alpha'",
        ),
        (
            "Permission denied",
            SshTarget(host="alpha", ssh_command="ssh -o 'User x'"),
            "with \"ssh-copy-id -o 'User x' alpha\"",
        ),
        (
            "Permission denied",
            SshTarget(host="alpha", ssh_command="tsh ssh"),
            "that needs no typing (a line of ~/.ssh/authorized_keys there)",
        ),
    ],
)
def test_a_command_that_mends_reaches_the_host_as_it_was_reached(
    stderr: str, target: SshTarget, command: str
) -> None:
    cause = ssh_cause(stderr.split("\n"), said_hello=False, target=target).text
    assert command in cause, cause


@pytest.mark.parametrize(
    ("python", "step"),
    [
        (None, "; run 'orchestrator setup' for that host, or give"),
        ("/old/py", "; leave python=/old/py out of its line and run 'orchestrator setup' for that"),
    ],
)
def test_setup_is_advised_only_where_it_would_do_something(python: str | None, step: str) -> None:
    assert step in why_not_booted(BootLine("old", "3.8.10"), "ssh", python)
