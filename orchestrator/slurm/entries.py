"""An allocation -> one entry as of a hosts file for each task, which `srun` starts there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from orchestrator.hosts import HostEntry
from orchestrator.slurm.allocation import Allocation, Node, read_allocation, require
from orchestrator.slurm.grant import granted

# A job asked for with these has them in its environment, where srun takes them for its own
# options: a step of one task could not have them, or would see one GPU of its node only.
_NOT_FOR_STEPS = (
    "SLURM_NTASKS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK",
    "SLURM_THREADS_PER_CORE",
)
_SRUN = (
    "--overlap",  # beside a shell's own step, and beside the step that it takes the place of
    "--nodes=1",
    "--ntasks=1",
    "--unbuffered",
    "--mpi=none",
    "--kill-on-bad-exit=0",
)


@contextmanager
def slurm_entries(
    options: str, variables: Mapping[str, str], wait_s: float, say: Callable[[str], None]
) -> Iterator[list[HostEntry]]:
    """Yield the entries; an allocation that was asked for is held while the block runs.

    Args:
        options: of salloc; "" is the allocation that this program runs in.
        variables: this program's environment.
        wait_s: how long an allocation may wait in the queue.
        say: told where it has to.

    Raises:
        SlurmError: there is no allocation.
    """
    require("srun")
    if not options.strip():
        yield entries_of(read_allocation(variables), variables)
        return
    with granted(options, wait_s, say) as told:
        yield entries_of(read_allocation(told), variables)


def entries_of(allocation: Allocation, variables: Mapping[str, str]) -> list[HostEntry]:
    """Return one entry for each task, in the order of the nodes.

    Args:
        allocation: the job.
        variables: the environment that srun will see.
    """
    tasks = [(node, index) for node in allocation.nodes for index in range(node.tasks)]
    return [
        HostEntry(
            line=number,
            name=node.name,
            command=_srun(allocation.job_id, node.name, variables),
            # The folders and the environment there are those of this machine, as is usual.
            python=sys.executable,
            device=_device(node, index),
            env=_threads(node),
            text=f"slurm {node.name}",
        )
        for number, (node, index) in enumerate(tasks, start=1)
    ]


def _srun(job_id: str, node: str, variables: Mapping[str, str]) -> str:
    unset = [word for name in _NOT_FOR_STEPS if name in variables for word in ("-u", name)]
    words: Sequence[str] = ["srun", f"--jobid={job_id}", f"--nodelist={node}", *_SRUN]
    return shlex.join(["env", *unset, *words] if unset else words)


def _device(node: Node, task: int) -> str | None:
    """Return the GPU of a task where several share a node; a step sees all of the job's there."""
    if node.tasks == 1 or node.gpus < node.tasks:
        return None
    return f"cuda:{task * (node.gpus // node.tasks)}"


def _threads(node: Node) -> tuple[tuple[str, str], ...]:
    """Return the share of the processors of a task where several share a node."""
    if node.tasks == 1 or not node.cpus:
        return ()
    return (("OMP_NUM_THREADS", str(max(1, node.cpus // node.tasks))),)
