"""Stages over the real OpenSSH client and server on loopback, and over a stand-in for faults."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from orchestrator.failures import Crashed, HostUnreachable, SpawnFailed, StageFailure
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from orchestrator.transport.ssh import SshTarget
from tests.support.sshd import Sshd, free_port, running_sshd, sshd_binary
from tests.support.stages import PATIENT, ROOT, MemoryRecorder, stub_spec
from worker.protocol.ops import Sampling

T = TypeVar("T")
FAKE_SSH = ROOT / "tests" / "bin" / "ssh"

needs_sshd = [
    pytest.mark.sshd,
    pytest.mark.skipif(
        sshd_binary() is None and not os.environ.get("CI"), reason="no OpenSSH server here"
    ),
]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


def ssh_spec(
    target: SshTarget,
    stage: int = 0,
    num_stages: int = 1,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> StageSpec:
    return StageSpec(
        stage=stage,
        num_stages=num_stages,
        host="node-b",
        transport="ssh",
        python=python,
        environment={"PYTHONPATH": str(ROOT), **(environment or {})},
        ssh=target,
        options=WorkerOptions(stub=True, lease_s=60),
    )


def on(server: Sshd, **client: str) -> SshTarget:
    return SshTarget(
        host="127.0.0.1",
        user=server.user,
        port=server.port,
        ssh_command=server.client(**client),
    )


def with_pipeline(
    specs: list[StageSpec],
    act: Callable[[Stages], Awaitable[T]],
    recorder: MemoryRecorder | None = None,
) -> T:
    async def run() -> T:
        async with await Stages.start(specs, recorder=recorder, timeouts=PATIENT) as pipeline:
            return await act(pipeline)

    return asyncio.run(run())


def start_failure(target: SshTarget, python: str = sys.executable) -> StageFailure:
    async def nothing(pipeline: Stages) -> None:
        raise AssertionError("the stage started")

    with pytest.raises(StageFailure) as caught:
        with_pipeline([ssh_spec(target, python=python)], nothing)
    return caught.value


async def one_token(pipeline: Stages) -> int | None:
    return (await pipeline.forward("r", (1, 2), 0, Sampling())).token_id


class TestRealServer:
    pytestmark = needs_sshd

    def test_stages_here_and_there_give_what_stages_here_give(self, sshd: Sshd) -> None:
        recorder = MemoryRecorder()
        mixed = [stub_spec(0, 3), *(ssh_spec(on(sshd), i, 3) for i in (1, 2))]
        expected = with_pipeline([stub_spec(i, 3) for i in range(3)], one_token)
        assert with_pipeline(mixed, one_token, recorder) == expected
        assert [(end.exit_code, end.expected) for end in recorder.exits] == [(0, True)] * 3

    def test_a_key_that_is_unknown_is_refused_with_the_next_step(self, sshd: Sshd) -> None:
        failure = start_failure(on(sshd, known="unknown"))
        assert (type(failure), failure.cause.partition(";")[0]) == (
            HostUnreachable,
            "has an SSH host key that is not known here",
        )

    def test_a_key_that_is_unknown_is_taken_with_accept_new(self, sshd: Sshd) -> None:
        (sshd.folder / "fresh").write_text("")
        target = on(sshd, known="fresh")
        accepting = SshTarget(
            host=target.host,
            user=target.user,
            port=target.port,
            ssh_command=target.ssh_command,
            accept_new_host_key=True,
        )
        with_pipeline([ssh_spec(accepting)], one_token)
        key = (sshd.folder / "host_key.pub").read_text().split()[1]
        assert key in (sshd.folder / "fresh").read_text()

    @pytest.mark.parametrize(
        ("client", "words"),
        [
            ({"known": "changed"}, "has another SSH host key than known_hosts says"),
            ({"key": "other_user_key"}, "refuses the SSH login"),
        ],
    )
    def test_a_login_that_fails_says_why(
        self, sshd: Sshd, client: dict[str, str], words: str
    ) -> None:
        failure = start_failure(on(sshd, **client))
        assert (type(failure), failure.cause.partition(";")[0]) == (HostUnreachable, words)

    def test_a_port_without_sshd_and_a_name_without_address(self, sshd: Sshd) -> None:
        command = sshd.client()
        refused = start_failure(SshTarget(host="127.0.0.1", port=free_port(), ssh_command=command))
        unknown = start_failure(SshTarget(host="no-such-host.invalid", ssh_command=command))
        assert [failure.cause.partition(";")[0] for failure in (refused, unknown)] == [
            "refuses SSH connections",
            "has a name that cannot be resolved",
        ]

    def test_a_python_that_is_not_there(self, sshd: Sshd) -> None:
        failure = start_failure(on(sshd), python="/no/such/python")
        assert (type(failure), "give an absolute python= path" in str(failure)) == (
            SpawnFailed,
            True,
        )

    def test_a_killed_worker_is_not_taken_for_a_lost_connection(self, sshd: Sshd) -> None:
        async def kill_worker(pipeline: Stages) -> StageFailure:
            psutil.Process(pipeline.facts.ready[0].pid).kill()
            with pytest.raises(StageFailure) as caught:
                while True:
                    await one_token(pipeline)
            return caught.value

        failure = with_pipeline([ssh_spec(on(sshd))], kill_worker)
        assert (type(failure), "was killed by SIGKILL" in str(failure)) == (Crashed, True)

    @pytest.mark.parametrize("victim", ["client", "session"])
    def test_a_lost_connection_ends_the_worker_there(self, sshd: Sshd, victim: str) -> None:
        async def cut(pipeline: Stages) -> tuple[StageFailure, bool]:
            worker = psutil.Process(pipeline.facts.ready[0].pid)
            ours = psutil.Process().children()
            client = next(child for child in ours if child.name() == "ssh")
            # The worker's shell is a child of the session's own sshd.
            session = next(p for p in worker.parents() if p.name().startswith("sshd"))
            (client if victim == "client" else session).kill()
            with pytest.raises(StageFailure) as caught:
                while True:
                    await one_token(pipeline)
            _, alive = await asyncio.to_thread(psutil.wait_procs, [worker], 10)
            return caught.value, bool(alive)

        failure, alive = with_pipeline([ssh_spec(on(sshd))], cut)
        assert (type(failure), failure.cause[:23], alive) == (
            HostUnreachable,
            "lost its SSH connection",
            False,
        )


def test_the_stand_in_runs_the_same_command_line() -> None:
    target = SshTarget(host="node-b", ssh_command=str(FAKE_SSH))
    assert with_pipeline([ssh_spec(target)], one_token) == with_pipeline([stub_spec()], one_token)


def test_ssh_failing_with_a_message_of_its_own_is_passed_on() -> None:
    command = shlex.join([str(FAKE_SSH), "--fail", "ssh: odd message"])
    failure = start_failure(SshTarget(host="node-b", ssh_command=command))
    sentence = (
        f"stage 0 on node-b cannot be reached over SSH; run '{command} node-b' to see why "
        "(ssh: odd message)"
    )
    assert (type(failure), failure.may_pass, str(failure)) == (HostUnreachable, True, sentence)


def test_an_ssh_client_that_is_not_installed_is_named() -> None:
    failure = start_failure(SshTarget(host="node-b", ssh_command="no-such-ssh"))
    assert str(failure) == (
        "stage 0 on node-b could not be started: there is no program 'no-such-ssh' here; install it"
    )


def test_the_stand_in_is_executable() -> None:
    assert os.access(Path(FAKE_SSH), os.X_OK)
