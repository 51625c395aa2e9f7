"""What Slurm's variables and messages mean, as Slurm 22.05 writes them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.causes import Ending, why_ended
from orchestrator.failures import Scene
from orchestrator.hosts import HostEntry
from orchestrator.slurm.allocation import Allocation, Node, SlurmError, read_allocation
from orchestrator.slurm.causes import slurm_cause
from orchestrator.slurm.entries import entries_of
from orchestrator.transport.base import ExitStatus

SRUN_OPTIONS = "--overlap --nodes=1 --ntasks=1 --unbuffered --mpi=none --kill-on-bad-exit=0".split()


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a `scontrol` on PATH that knows three nodes."""
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$3" = "n[1-3]" ] || exit 1\necho n1\necho n2\necho n3\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")


JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}


@pytest.mark.usefixtures("scontrol")
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [(1, 0, 0)] * 3),
        (
            {
                "SLURM_NTASKS": "5",
                "SLURM_TASKS_PER_NODE": "2(x2),1",
                "SLURM_JOB_CPUS_PER_NODE": "8,4(x2)",
                "SLURM_GPUS_PER_TASK": "a100:2",
            },
            [(2, 8, 4), (2, 4, 4), (1, 4, 2)],
        ),
        # Nobody asked for a number of tasks: sbatch counts processors.
        ({"SLURM_TASKS_PER_NODE": "64(x3)", "SLURM_GPUS_ON_NODE": "4"}, [(1, 0, 4)] * 3),
        ({"SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "odd"}, [(1, 0, 0)] * 3),
    ],
)
def test_an_allocation_is_read_from_its_variables(
    variables: Mapping[str, str], expected: list[tuple[int, int, int]]
) -> None:
    nodes = read_allocation({**JOB, **variables}).nodes
    assert [node.name for node in nodes] == ["n1", "n2", "n3"]
    assert [(node.tasks, node.cpus, node.gpus) for node in nodes] == expected


@pytest.mark.usefixtures("scontrol")
def test_nodes_that_cannot_be_listed_are_refused() -> None:
    with pytest.raises(SlurmError, match="the nodes 'x' cannot be listed: exit code 1"):
        read_allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "x"})


def test_one_task_of_a_node_has_all_of_it() -> None:
    entry = HostEntry(
        line=1,
        name="n1",
        command=shlex.join(["srun", "--jobid=7", "--nodelist=n1", *SRUN_OPTIONS]),
        python=sys.executable,
    )
    assert entries_of(Allocation("7", (Node(name="n1", cpus=8, gpus=4),)), {}) == [entry]


def test_tasks_of_a_node_share_its_processors_and_gpus() -> None:
    entries = entries_of(
        Allocation("7", (Node(name="n1", tasks=2, cpus=8, gpus=4),)),
        {"SLURM_GPUS_PER_TASK": "2", "SLURM_NTASKS_PER_NODE": "2", "HOME": "/root"},
    )
    assert [(entry.line, entry.label, entry.device, entry.env) for entry in entries] == [
        (1, "n1", "cuda:0", (("OMP_NUM_THREADS", "4"),)),
        (2, "n1", "cuda:2", (("OMP_NUM_THREADS", "4"),)),
    ]
    unset = "env -u SLURM_NTASKS_PER_NODE -u SLURM_GPUS_PER_TASK srun --jobid=7 --nodelist=n1 "
    assert all((entry.command or "").startswith(unset) for entry in entries)


CAUSES = [
    (
        (
            "slurmstepd-n2: error: *** STEP 2.0 ON n2 CANCELLED AT 2026-11-30T00:00:05 ***",
            "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.",
            "srun: error: n2: task 0: Exited with exit code 143",
        ),
        "was ended by Slurm: its job or step was cancelled (scancel)",
        False,
    ),
    (
        (
            (
                "slurmstepd: error: *** STEP 2.0 ON n2 CANCELLED AT 2026-11-30T00:00:05 DUE TO "
                "TIME LIMIT ***"
            ),
            "srun: error: n2: task 0: Killed",
        ),
        "was ended by Slurm: the time limit of its job was reached",
        False,
    ),
    (
        (
            "srun: error: Node failure on n2",
            (
                "slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-30T00:00:05 DUE TO "
                "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
            ),
        ),
        "was ended by Slurm: its node failed",
        True,
    ),
    (
        (
            (
                "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=2.0. Some of your "
                "processes may have been killed by the cgroup out-of-memory handler."
            ),
            "srun: error: n2: task 0: Out Of Memory",
        ),
        "was ended by Slurm: it took more memory than its job was given",
        False,
    ),
    (
        (
            "srun: error: Slurm job 4 has expired",
            "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 4",
        ),
        "was ended by Slurm: the time limit of its job was reached",
        False,
    ),
    (
        (
            "srun: error: Unable to confirm allocation for job 99: Invalid job id specified",
            "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 99",
        ),
        "cannot be started: its allocation has ended",
        False,
    ),
    (
        (
            (
                "srun: error: Task launch for StepId=1.0 failed on node n2: Communication "
                "connection failure"
            ),
        ),
        "cannot be started: slurmd on its node does not answer",
        True,
    ),
]


@pytest.mark.parametrize(("lines", "begins", "may_pass"), CAUSES)
def test_what_slurm_says_is_the_cause(lines: tuple[str, ...], begins: str, may_pass: bool) -> None:
    scene = Scene(stage=1, host="n2", phase="idle", exit_status=ExitStatus.of(143))
    ending = Ending(scene=scene, transport="command", said_hello=True, stderr_lines=lines)
    failure = why_ended(ending)
    assert failure.sentence.startswith(f"stage 1 on n2 {begins}")
    assert failure.may_pass is may_pass


def test_a_worker_that_only_died_under_srun_is_not_slurms_doing() -> None:
    lines = (
        "*** STEP 2.0 ON n2 CANCELLED AT now, says the worker itself",
        "srun: error: n2: task 0: Segmentation fault",
        "srun: Terminating StepId=2.0",
    )
    assert slurm_cause(lines) is None
