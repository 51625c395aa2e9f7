"""What Slurm has allocated: nodes, tasks, processors and GPUs, by the variables that it sets."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.protocol.exits import ExitCode

_ANSWER_S = 30.0
# `2(x3),1`: two on each of three nodes, then one.
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class SlurmError(Exception):
    """There is no allocation to run in; one sentence."""

    def __init__(self, sentence: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The part of an allocation that is on one node.

    Attributes:
        cpus: processors of it; 0 where Slurm does not say.
        gpus: GPUs of it; 0 where Slurm does not say, or there is none.
    """

    name: str
    tasks: int = 1
    cpus: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """A job that holds nodes."""

    job_id: str
    nodes: tuple[Node, ...]


def read_allocation(variables: Mapping[str, str]) -> Allocation:
    """Read what a job's own variables say.

    Raises:
        SlurmError: they name no nodes.
    """
    job_id, listed = variables.get("SLURM_JOB_ID", ""), variables.get("SLURM_JOB_NODELIST", "")
    if not job_id or not listed:
        raise SlurmError(
            "--slurm: this is no allocation of Slurm (SLURM_JOB_ID and SLURM_JOB_NODELIST are not "
            'set); run it within salloc or sbatch, or give options for one, as in --slurm="-N 2"'
        )
    names = _names(listed)
    tasks = _counts(variables.get("SLURM_TASKS_PER_NODE", ""))
    # Without a number of tasks asked for, sbatch counts one for each processor.
    asked = any(variables.get(name) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    if not asked or len(tasks) != len(names):
        tasks = [1] * len(names)
    cpus = _counts(variables.get("SLURM_JOB_CPUS_PER_NODE", ""))
    if len(cpus) != len(names):
        cpus = [0] * len(names)
    return Allocation(
        job_id,
        tuple(
            Node(name=name, tasks=own, cpus=processors, gpus=_gpus(variables, own))
            for name, own, processors in zip(names, tasks, cpus, strict=True)
        ),
    )


def require(program: str) -> None:
    """Make sure that one of Slurm's programs is here.

    Raises:
        SlurmError: it is not.
    """
    if shutil.which(program) is None:
        raise SlurmError(
            f"--slurm: there is no program '{program}' on PATH; run it on a node where Slurm's "
            "commands are installed ('module load slurm' on some clusters)"
        )


def _names(listed: str) -> Sequence[str]:
    """Return the nodes of a list like `n[1-3,7]`."""
    require("scontrol")
    try:
        told = subprocess.run(
            ["scontrol", "show", "hostnames", listed],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"--slurm: 'scontrol show hostnames' did not answer within {_ANSWER_S:g} s; see "
            "whether 'scontrol ping' does",
            ExitCode.PEER_GONE,
        ) from None
    names = told.stdout.split()
    if told.returncode != 0 or not names:
        said = told.stderr.strip().splitlines()
        reason = said[-1] if said else f"exit code {told.returncode}"
        raise SlurmError(f"--slurm: the nodes {listed!r} cannot be listed: {reason}")
    return names


def _counts(text: str) -> list[int]:
    """Expand `2(x3),1` to [2, 2, 2, 1]; [] where it is something else."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _gpus(variables: Mapping[str, str], tasks: int) -> int:
    """Return the GPUs of a node, as far as the variables say."""
    for name, times in (
        ("SLURM_GPUS_ON_NODE", 1),
        ("SLURM_GPUS_PER_NODE", 1),
        ("SLURM_GPUS_PER_TASK", tasks),
    ):
        # `2`, or with a type: `a100:2`.
        number = variables.get(name, "").rpartition(":")[2]
        if number.isdecimal():
            return int(number) * times
    return 0
