"""Workers behind docker and kubectl, played by scripts that say what the real ones do."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import psutil
import pytest

from orchestrator.failures import Crashed, ProtocolViolation, SpawnFailed, StageFailure
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from tests.support.stages import PATIENT, ROOT
from worker.protocol.ops import Sampling

BIN = ROOT / "tests" / "bin"
NO_STDIN = "got the end of its stdin at once"


def behind(cache: Path, program: str, *words: str, python: str = sys.executable) -> StageSpec:
    """A stub worker behind a launcher; what is shipped to it is kept below `cache`."""
    return StageSpec(
        stage=0,
        num_stages=1,
        host="box",
        transport="command",
        command=(str(BIN / program), "exec", *words),
        python=python,
        environment={"XDG_CACHE_HOME": str(cache)},
        options=WorkerOptions(stub=True, lease_s=60),
    )


async def answer_of(spec: StageSpec) -> int | None:
    async with await Stages.start([spec], timeouts=PATIENT) as pipeline:
        return (await pipeline.forward("r", (1, 2), 0, Sampling())).token_id


def failure_of(spec: StageSpec) -> tuple[type[StageFailure], bool, str]:
    with pytest.raises(StageFailure) as caught:
        asyncio.run(answer_of(spec))
    failure = caught.value
    return type(failure), failure.may_pass, failure.cause.partition(";")[0]


@pytest.mark.parametrize("words", [("docker", "-i", "box"), ("kubectl", "-i", "pod-0", "--")])
def test_a_worker_in_a_container_gets_its_code_and_serves(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    answers = [asyncio.run(answer_of(behind(tmp_path, *words))) for _ in range(2)]
    kept = [path.name for path in tmp_path.glob("stageline/code/*")]
    assert (answers, len(kept)) == ([27, 27], 1)


@pytest.mark.parametrize("words", [("docker", "box"), ("kubectl", "pod-0", "--")])
def test_a_launcher_without_i_is_told_so(words: tuple[str, ...], tmp_path: Path) -> None:
    assert failure_of(behind(tmp_path, *words)) == (SpawnFailed, False, NO_STDIN)


def test_a_launcher_without_i_is_told_so_also_where_the_code_is_there(tmp_path: Path) -> None:
    asyncio.run(answer_of(behind(tmp_path, "docker", "-i", "box")))
    kind, _, cause = failure_of(behind(tmp_path, "docker", "box"))
    assert (kind, cause) == (Crashed, NO_STDIN)


@pytest.mark.parametrize("code", ["shipped", "installed"])
def test_a_launcher_that_gives_a_terminal_is_told_so_without_what_it_repeats(
    code: Literal["shipped", "installed"], tmp_path: Path
) -> None:
    spec = replace(
        behind(tmp_path, "docker"),
        command=("sh", "-c", '{ tee /dev/fd/3 | "$@"; } 3>&1', "sh"),
        code=code,
        environment={"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
        secrets={"HF_TOKEN": "hf_one"},
    )
    assert failure_of(spec) == (
        ProtocolViolation,
        False,
        "repeats what is sent to it, as a terminal does",
    )


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("docker", "-i", "gone"), "has no such running container"),
        (("docker", "-i", "stopped"), "has no such running container"),
        (("docker", "-i", "no-daemon"), "cannot be reached: its launcher finds no server"),
        (("kubectl", "-i", "gone", "--"), "has no such pod or container"),
    ],
)
def test_a_container_that_is_not_there_is_named(
    words: tuple[str, ...], cause: str, tmp_path: Path
) -> None:
    assert failure_of(behind(tmp_path, *words)) == (SpawnFailed, True, cause)


def test_a_container_without_the_program_is_named(tmp_path: Path) -> None:
    found = failure_of(behind(tmp_path, "docker", "-i", "box", python="/no/such/python"))
    assert (found[:2], "give an absolute python= path" in found[2] or "127" in found[2]) == (
        (SpawnFailed, False),
        False,
    )


@pytest.mark.parametrize("words", [("docker", "-i", "box"), ("kubectl", "-i", "pod-0", "--")])
def test_a_worker_that_is_killed_behind_a_launcher_is_named_with_its_signal(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    async def kill() -> StageFailure:
        async with await Stages.start([behind(tmp_path, *words)], timeouts=PATIENT) as pipeline:
            psutil.Process(pipeline.facts.ready[0].pid).kill()
            with pytest.raises(StageFailure) as caught:
                while True:
                    await pipeline.forward("r", (1, 2), 0, Sampling())
            return caught.value

    failure = asyncio.run(kill())
    assert (type(failure), failure.cause[:21]) == (Crashed, "was killed by SIGKILL")
