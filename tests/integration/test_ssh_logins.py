"""Logins that go wrong or slowly, against a real OpenSSH server: what is said, and how soon."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from orchestrator.failures import HostUnreachable, ProtocolViolation, SpawnFailed, StageFailure
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stage import StageClient, StageStatus
from orchestrator.stages import Stages
from orchestrator.timeouts import Timeouts
from orchestrator.transport.interpreter import SETUP_VENV
from orchestrator.transport.ssh import SshTarget
from tests.support.bashrc import write_homes
from tests.support.old_python import write_old_python
from tests.support.sshd import Sshd, running_sshd, sshd_binary
from tests.support.stages import PATIENT, MemoryRecorder
from tests.support.users import account
from worker.protocol.ops import Sampling

pytestmark = [
    pytest.mark.sshd,
    pytest.mark.skipif(
        sshd_binary() is None and not os.environ.get("CI"), reason="no OpenSSH server here"
    ),
]
# What a server says for accounts that this machine has not.
SAYINGS = {
    "nologin": ("This account is currently not available.", 1),
    "expired": ("WARNING: Your password has expired.", 1),
}


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    folder = tmp_path_factory.mktemp("sshd")
    doors = dict(write_homes(folder / "homes"))
    for name, (text, code) in SAYINGS.items():
        doors[name] = f"ForceCommand echo '{text}'; exit {code}"
    (server_folder := folder / "server").mkdir()
    with running_sshd(server_folder, doors=doors) as server:
        yield server


def through(
    server: Sshd,
    door: str | None = None,
    *,
    python: str | None = sys.executable,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
    **client: str,
) -> StageSpec:
    target = SshTarget(
        host="127.0.0.1",
        user=user or server.user,
        port=server.port if door is None else server.doors[door],
        ssh_command=server.client(**client),
    )
    return StageSpec(
        stage=0,
        num_stages=1,
        host="node-b",
        transport="ssh",
        python=python,
        environment=environment or {},
        ssh=target,
        options=WorkerOptions(stub=True, lease_s=60),
    )


async def answer_of(
    spec: StageSpec, timeouts: Timeouts = PATIENT, recorder: MemoryRecorder | None = None
) -> int | None:
    async with await Stages.start([spec], timeouts=timeouts, recorder=recorder) as pipeline:
        return (await pipeline.forward("r", (1, 2), 0, Sampling())).token_id


def failure_of(spec: StageSpec, timeouts: Timeouts = PATIENT) -> StageFailure:
    with pytest.raises(StageFailure) as caught:
        asyncio.run(answer_of(spec, timeouts))
    return caught.value


def head(failure: StageFailure) -> tuple[type[StageFailure], bool, str]:
    return type(failure), failure.may_pass, failure.cause.partition(";")[0]


@pytest.mark.parametrize("door", ["banner", "eats_stdin"])
def test_what_a_login_script_prints_or_reads_is_no_part_of_the_talk(sshd: Sshd, door: str) -> None:
    recorder = MemoryRecorder()
    answers = [asyncio.run(answer_of(through(sshd, door), recorder=recorder)) for _ in range(2)]
    told = b"".join(recorder.lines)
    # The first start is sent its code and the second has it.
    assert (answers, told.count(b" need "), told.count(b" have ")) == ([27, 27], 1, 1)


def test_a_login_script_that_prints_without_end_is_named(sshd: Sshd) -> None:
    failure = failure_of(through(sshd, "flood"))
    assert head(failure) == (
        ProtocolViolation,
        False,
        "wrote more than 65536 bytes before its first message",
    )


def test_a_login_script_that_ends_the_shell_is_named(sshd: Sshd) -> None:
    failure = failure_of(through(sshd, "exits"))
    by_hand = f"ssh -F {sshd.folder}/client_known_user_key -p {sshd.doors['exits']} {sshd.user}"
    assert (*head(failure), f"see what '{by_hand}@127.0.0.1 true' prints" in failure.cause) == (
        SpawnFailed,
        False,
        "ended with exit code 7 before its first line and no message",
        True,
    )


def test_a_slow_login_is_waited_for_and_the_user_told(sshd: Sshd) -> None:
    notes: list[str] = []

    def told(status: StageStatus) -> None:
        notes.append(status.note)

    async def start() -> None:
        stage = StageClient(
            through(sshd, "slow"),
            recorder=MemoryRecorder(),
            timeouts=replace(PATIENT, quiet_s=0.3),
            on_status=told,
        )
        try:
            await stage.start()
        finally:
            await stage.aclose()

    asyncio.run(start())
    assert "still connecting; given up after 30 s (--start-timeout-s)" in notes


def test_a_login_that_outlasts_the_start_timeout_fails_in_that_time(sshd: Sshd) -> None:
    begun_s = time.monotonic()
    failure = failure_of(through(sshd, "slow"), replace(PATIENT, hello_s=0.8))
    took_s = time.monotonic() - begun_s
    assert head(failure) == (HostUnreachable, True, "wrote no first message within 0.8 s")
    assert took_s < 5


@pytest.mark.parametrize(
    ("door", "cause"),
    [
        ("nologin", "has a login shell for {user} that takes no commands"),
        ("expired", "has an expired password for {user}"),
    ],
)
def test_an_account_that_lets_nobody_in_is_named(sshd: Sshd, door: str, cause: str) -> None:
    expected = (SpawnFailed, False, cause.format(user=sshd.user))
    assert head(failure_of(through(sshd, door))) == expected


def test_a_key_with_a_passphrase_never_asks(sshd: Sshd) -> None:
    key = sshd.folder / "locked_key"
    shutil.copy(sshd.folder / "user_key", key)
    key.chmod(0o600)
    new = ["-N", "a passphrase", "-P", "", "-f", str(key)]
    subprocess.run(["ssh-keygen", "-q", "-p", *new], check=True, capture_output=True)
    failure = failure_of(through(sshd, key="locked_key"))
    said = "load one that has a passphrase with 'ssh-add'" in failure.cause
    assert (*head(failure)[:2], said) == (HostUnreachable, False, True)


def test_the_next_step_names_the_port_and_the_user(sshd: Sshd) -> None:
    denied = failure_of(through(sshd, key="other_user_key"))
    changed = failure_of(through(sshd, known="changed"))
    assert (
        f" -p {sshd.port} {sshd.user}@127.0.0.1'" in denied.cause.partition("'ssh-copy-id -")[2],
        f"ssh-keygen -f {sshd.folder / 'changed'} -R '[127.0.0.1]:{sshd.port}'" in changed.cause,
    ) == (True, True)


def test_a_blackhole_is_found_by_the_connect_timeout(sshd: Sshd) -> None:
    with ExitStack() as held:
        full = held.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        # Nobody accepts, so once the queue is full the kernel drops what comes, as a firewall does.
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        spec = through(sshd)
        assert spec.ssh is not None
        target = replace(spec.ssh, port=full.getsockname()[1], connect_timeout_s=1)
        failure = failure_of(replace(spec, ssh=target))
    assert head(failure) == (HostUnreachable, True, "does not answer to SSH in time")


# ssh has the user's shell run a ProxyCommand, and each shell has its own words.
@pytest.mark.parametrize("shell", [s for s in ("sh", "dash", "bash", "zsh") if shutil.which(s)])
def test_a_jump_host_that_fails_is_told_from_a_host_that_drops_logins(
    sshd: Sshd, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", str(shutil.which(shell)))
    spec = through(sshd)
    assert spec.ssh is not None
    command = f"{spec.ssh.ssh_command} -o ProxyCommand=/no/such/program"
    begun_s = time.monotonic()
    failure = failure_of(replace(spec, ssh=replace(spec.ssh, ssh_command=command)))
    assert head(failure) == (
        HostUnreachable,
        True,
        "cannot be reached over SSH",
    )
    assert re.search(r"\(ssh: .*/no/such/program.*\)$", failure.cause), failure.cause
    assert time.monotonic() - begun_s < 5


def _minor_of(python: str) -> int:
    text = "import sys; print(sys.version_info[1])"
    return int(subprocess.run([python, "-c", text], capture_output=True, check=True).stdout)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make accounts")
def test_a_locked_account_is_refused_and_a_home_that_is_not_there_is_none_needed() -> None:
    # One that other users may run.
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if python is None or _minor_of(python) < 11:
        pytest.skip("no python 3.11 here that another user may run")
    with ExitStack() as stack:
        locked = stack.enter_context(account("slocked", locked=True))
        homeless = stack.enter_context(account("shomeless"))
        # Where other users can read the key that they are to be let in with.
        folder = Path(stack.enter_context(TemporaryDirectory(dir="/tmp")))
        folder.chmod(0o755)
        server = stack.enter_context(running_sshd(folder, rules=["SetEnv HOME=/nowhere"]))
        refused = failure_of(through(server, user=locked))
        served = asyncio.run(answer_of(through(server, user=homeless, python=python)))
    expected = (HostUnreachable, False, "refuses the SSH login")
    assert (head(refused), served) == (expected, 27)


def test_an_old_python_is_named_with_its_version(sshd: Sshd, tmp_path: Path) -> None:
    failure = failure_of(through(sshd, python=write_old_python(tmp_path / "python3")))
    expected = "has python 3.8.10, which is too old: a worker needs 3.11"
    assert head(failure) == (SpawnFailed, False, expected)


def test_the_venv_of_setup_is_found_without_a_python_key(sshd: Sshd) -> None:
    home = sshd.folder / "home"
    venv = home / SETUP_VENV / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    try:
        assert asyncio.run(answer_of(through(sshd, python=None))) == 27
    finally:
        shutil.rmtree(home / ".local")


def test_a_host_without_python_is_told_what_to_install(sshd: Sshd) -> None:
    failure = failure_of(through(sshd, python=None, environment={"PATH": "/nowhere"}))
    # `env` itself is found by the shell; what it is to run is not.
    assert (type(failure), failure.may_pass) == (SpawnFailed, False)
    assert "give an absolute python= path" in failure.cause


def test_a_server_that_knows_one_cipher_only_is_reached(tmp_path: Path) -> None:
    with running_sshd(tmp_path, rules=["Ciphers aes256-ctr"]) as server:
        assert asyncio.run(answer_of(through(server))) == 27


def test_a_server_that_limits_logins_lets_all_workers_start(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    with running_sshd(tmp_path, rules=["MaxStartups 2:100:3"]) as server:
        spec, brisk = through(server), replace(PATIENT, login_pause_s=0.2)
        specs = [replace(spec, stage=stage, num_stages=8) for stage in range(8)]

        async def start() -> int:
            async with await Stages.start(specs, recorder=recorder, timeouts=brisk) as pipeline:
                return len(pipeline.facts.ready)

        assert asyncio.run(start()) == 8
    assert (b"the login was dropped" in recorder.stderr_text, recorder.failures) == (True, [])


def test_a_worker_whose_client_is_stopped_ends_with_its_lease(sshd: Sshd) -> None:
    spec = replace(through(sshd), options=WorkerOptions(stub=True, lease_s=1.5))

    async def stop() -> float:
        async with await Stages.start([spec], timeouts=PATIENT) as pipeline:
            worker = psutil.Process(pipeline.facts.ready[0].pid)
            ours = psutil.Process().children()
            client = next(child for child in ours if child.name() == "ssh")
            client.suspend()
            begun_s = time.monotonic()
            try:
                await asyncio.to_thread(psutil.wait_procs, [worker], 15)
                return time.monotonic() - begun_s
            finally:
                client.resume()
                pipeline.kill()

    assert 1 < asyncio.run(stop()) < 6
