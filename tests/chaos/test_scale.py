"""Many stages and many requests: bounded resources, and nothing that grows."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from orchestrator.bundle.records import NoRecorder, Recorder
from orchestrator.bundle.writer import BundleWriter
from orchestrator.generate import generate
from orchestrator.recovery.policy import RecoveryPolicy
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from orchestrator.transport.ssh import SshTarget
from tests.support.cli import COMMAND, environment, stub_answer
from tests.support.sshd import Sshd, running_sshd, sshd_binary
from tests.support.stages import PATIENT, stub_specs
from tools.bench.quick_stages import quick_specs

# Three pipes and what asyncio needs to hear of a child's end.
DESCRIPTORS_OF_A_STAGE = 4
MIB = 1024 * 1024


def held() -> tuple[int, int, int]:
    """Return this process's descriptors, threads and resident bytes."""
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return descriptors, threading.active_count(), psutil.Process().memory_info().rss


async def answer(pipeline: Stages, rid: str, recorder: Recorder, new_tokens: int) -> list[int]:
    request = GenerationRequest(request_id=rid, prompt="a b c", max_new_tokens=new_tokens)
    tokens = generate(pipeline, request, recorder)
    async with contextlib.aclosing(tokens):
        return [token.token_id async for token in tokens]


def test_64_stages_start_together_and_answer_with_bounded_resources() -> None:
    before = held()

    async def run() -> tuple[list[int], tuple[int, int, int]]:
        specs = stub_specs(64)
        async with await Stages.start(specs, timeouts=PATIENT) as pipeline:
            return await answer(pipeline, "r", NoRecorder(), 4), held()

    tokens, during = asyncio.run(run())
    assert tokens == stub_answer("a b c", 64, 4)
    descriptors, threads, resident_bytes = (
        now - then for now, then in zip(during, before, strict=True)
    )
    assert descriptors <= 64 * DESCRIPTORS_OF_A_STAGE + 16
    assert threads <= 64  # asyncio of Python 3.11 waits for each child in a thread
    assert resident_bytes < 48 * MIB


@pytest.mark.sshd
@pytest.mark.skipif(
    sshd_binary() is None and not os.environ.get("CI"), reason="no OpenSSH server here"
)
def test_16_stages_of_one_host_start_together_over_ssh(tmp_path: Path) -> None:
    async def run(server: Sshd) -> list[int]:
        target = SshTarget(
            host="127.0.0.1", user=server.user, port=server.port, ssh_command=server.client()
        )
        specs = [
            StageSpec(
                stage=stage,
                num_stages=16,
                host="node-b",
                transport="ssh",
                ssh=target,
                python=sys.executable,
                options=WorkerOptions(stub=True, lease_s=60),
            )
            for stage in range(16)
        ]
        async with await Stages.start(specs, timeouts=PATIENT) as pipeline:
            return await answer(pipeline, "r", NoRecorder(), 4)

    # sshd's own default, with which it drops some of 16 logins that come at once.
    with running_sshd(tmp_path, rules=["MaxStartups 10:30:100"]) as server:
        assert asyncio.run(run(server)) == stub_answer("a b c", 16, 4)


def test_too_few_descriptors_are_one_sentence_with_the_next_step(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("command=\"sh -c 'exec sleep 60' sh\" slots=64\n")
    done = subprocess.run(
        [*COMMAND, "run", "--stub", "--prompt", "a", "--no-bundle", "--hosts", hosts, "--json"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48)),
    )
    assert done.returncode == 5, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "spawn_failed"
    assert error["message"].endswith(
        "could not be started: this machine allows no more open files (Too many open files); "
        "raise the limit with 'ulimit -n', or start fewer stages"
    )


class Crowd:
    """Send requests through a pipeline, some at once, one in ten of them given up early."""

    def __init__(self, pipeline: Stages, recorder: Recorder) -> None:
        self._pipeline = pipeline
        self._recorder = recorder
        self._room = asyncio.Semaphore(8)
        self.whole = 0
        self.given_up = 0

    async def send(self, rids: range) -> None:
        """Wait until all of them have ended."""
        async with asyncio.TaskGroup() as group:
            for number in rids:
                await self._room.acquire()
                group.create_task(self._one(number))

    async def _one(self, number: int) -> None:
        request = GenerationRequest(
            request_id=f"r{number}", prompt="a b c", max_new_tokens=2 if number % 10 == 0 else 1
        )
        tokens = generate(self._pipeline, request, self._recorder)
        try:
            async with contextlib.aclosing(tokens):
                async for token in tokens:
                    if number % 10 == 0:
                        self.given_up += 1
                        return
                    self.whole += token.finish is not None
        finally:
            self._room.release()


@contextlib.asynccontextmanager
async def crowded_pipeline(folder: Path) -> AsyncIterator[Crowd]:
    """Run 32 stages with everything that a run has: a bundle, histories for recovery."""
    recorder = BundleWriter(folder / "bundle")
    try:
        async with await Stages.start(
            quick_specs(32), recorder=recorder, timeouts=PATIENT, policy=RecoveryPolicy()
        ) as pipeline:
            yield Crowd(pipeline, recorder)
    finally:
        recorder.close(0)


@pytest.mark.timeout(300)  # some 65,000 ops
def test_1000_requests_on_32_stages_leave_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with crowded_pipeline(tmp_path) as crowd:
            await crowd.send(range(200))  # the allocator and every cache are warm
            before, tasks = held(), len(asyncio.all_tasks())
            await crowd.send(range(200, 1000))
            after = held()
            assert (crowd.whole, crowd.given_up) == (900, 100)
            assert len(asyncio.all_tasks()) == tasks
            assert after[:2] == before[:2]
            # A history or a pending op kept of each request would be some 60 MiB.
            assert after[2] - before[2] < 4 * MIB

    asyncio.run(run())
    # A stage tells its stderr of each request that nobody released.
    assert list((tmp_path / "bundle" / "stderr").iterdir()) == []
