"""`--slurm` with a real Slurm of two nodes on this machine: a stage for each task, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests.support.cli import COMMAND, environment, stub_answer
from tests.support.slurm import Slurm, missing_slurm, running_slurm

LIMIT_S = 60.0
STUB = ("run", "--stub", "--prompt", "a b c", "--no-bundle")
SHORT = (*STUB, "--max-new-tokens", "5", "--json")
ENDLESS = (*STUB, "--max-new-tokens", "1000000")

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        bool(missing_slurm()) and not os.environ.get("CI"), reason=missing_slurm() or "is here"
    ),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    # Not pytest's own folder: its name can be too long for munge's socket.
    with TemporaryDirectory(prefix="slurm-") as folder, running_slurm(Path(folder)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left(slurm: Slurm) -> Iterator[None]:
    """Fail a test that leaves a job, also one that is just ending by itself."""
    yield
    slurm.wait_until_empty()


def run(
    slurm: Slurm, *words: str, within: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end, within an allocation where `within` has salloc's words."""
    return subprocess.run(
        [*within, *COMMAND, *words],
        env=environment(slurm.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@contextmanager
def started(slurm: Slurm, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command line; it is killed with the block where it has not ended."""
    process = subprocess.Popen(
        [*COMMAND, *words],
        env=environment(slurm.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def answer(done: subprocess.CompletedProcess[str]) -> tuple[list[int], list[str]]:
    """Return the token ids and the hosts of a run with --json."""
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return told["token_ids"], [stage["host"] for stage in told["stages"]]


def until(reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < deadline_s, "it did not come to that"
        time.sleep(0.05)  # another program's state has no event to wait for


def steps(slurm: Slurm) -> list[psutil.Process]:
    """Return what runs on the nodes of this cluster."""
    config = f"SLURM_CONF={slurm.folder / 'slurm.conf'}".encode()
    found = []
    for process in psutil.process_iter():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # ended meanwhile
        if config in variables and any(v.startswith(b"SLURM_STEP_ID=") for v in variables):
            found.append(process)
    return found


def test_a_run_within_an_allocation_has_a_stage_on_each_node(slurm: Slurm) -> None:
    done = run(slurm, *SHORT, "--slurm", within=("salloc", "-Q", "-N2"))
    assert answer(done) == (stub_answer("a b c", 2, 5), ["n1", "n2"])


def test_a_run_with_options_gets_an_allocation_and_gives_it_back(slurm: Slurm) -> None:
    done = run(slurm, *SHORT, "--slurm=-N 2 --ntasks-per-node=2")
    assert answer(done) == (stub_answer("a b c", 4, 5), ["n1", "n1", "n2", "n2"])
    assert slurm.jobs() == []


def test_an_errand_asks_each_node_once(slurm: Slurm) -> None:
    done = run(slurm, "cache", "ls", "--slurm=-N 2 --ntasks-per-node=2")
    asked = [line.split("]")[1] for line in done.stderr.splitlines() if "connecting" in line]
    assert (done.returncode, sorted(asked)) == (
        0,
        [" the worker on n1: connecting", " the worker on n2: connecting"],
    )


def test_a_cancelled_job_is_named_and_not_tried_again(slurm: Slurm) -> None:
    with started(slurm, *ENDLESS, "--slurm=-N 2") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        slurm.ask("scancel", *slurm.jobs())
        _, stderr = process.communicate(timeout=LIMIT_S)
    errors = [line for line in stderr.decode().splitlines() if line.startswith("error: ")]
    assert (process.returncode, len(errors)) == (5, 1), stderr.decode()
    assert " was ended by Slurm: its job or step was cancelled (scancel)" in errors[0]
    assert b"restart" not in stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("-N 2 -p absent", "Job submit/allocate failed: Invalid partition name specified"),
        ("--no-such-option", "unrecognized option '--no-such-option'"),
    ],
)
def test_what_slurm_refuses_is_said_in_its_words(slurm: Slurm, options: str, reason: str) -> None:
    done = run(slurm, *SHORT, f"--slurm={options}")
    expected = f"error: --slurm='{options}': Slurm gives no allocation: {reason}; the options are "
    assert (done.returncode, done.stderr) == (2, f"{expected}those of salloc\n")


def test_without_an_allocation_the_next_step_is_named(slurm: Slurm) -> None:
    done = run(slurm, *SHORT, "--slurm")
    assert done.returncode == 2
    assert "this is no allocation of Slurm" in done.stderr


def test_an_allocation_that_does_not_come_in_time_is_given_up(slurm: Slurm) -> None:
    done = run(slurm, *SHORT, "--slurm=-N 2 --begin=now+1hour", "--slurm-wait-s", "0.5")
    assert done.returncode == 5
    assert "Slurm granted no allocation within 0.5 s" in done.stderr
    assert slurm.jobs() == []


@pytest.mark.parametrize("command", [SHORT, ("cache", "ls")])
def test_ctrl_c_in_the_queue_gives_the_place_up(slurm: Slurm, command: tuple[str, ...]) -> None:
    with started(slurm, *command, "--slurm=-N 2 --begin=now+1hour") as process:
        assert process.stderr is not None
        assert b"queued and waiting" in process.stderr.read(4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 128 + signal.SIGINT
    assert slurm.jobs() == []


def test_a_worker_that_is_killed_on_a_node_is_started_there_again(slurm: Slurm) -> None:
    with started(slurm, *STUB, "--max-new-tokens", "200", "--slurm=-N 2") as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        next(one for one in steps(slurm) if "--stage=1" in one.cmdline()).kill()
        stdout, stderr = process.communicate(timeout=LIMIT_S)
    expected = " ".join(map(str, stub_answer("a b c", 2, 200)))
    assert (process.returncode, (first + stdout).decode().strip()) == (0, expected)
    assert "stage 1 on n2 was killed by SIGKILL" in stderr.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_job_and_no_worker_outlives_the_orchestrator(
    slurm: Slurm, number: signal.Signals
) -> None:
    with started(slurm, *ENDLESS, "--slurm=-N 2") as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    until(lambda: slurm.jobs() == [] and steps(slurm) == [])
