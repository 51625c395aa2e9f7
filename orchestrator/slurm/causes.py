"""What Slurm's own messages mean when it ends a step, with the next step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlurmCause:
    """Why Slurm ended a worker, or did not start it.

    Attributes:
        text: a verb phrase for a failure's sentence.
        may_pass: whether another try may go better.
    """

    text: str
    may_pass: bool


# The first pattern that is found names the cause. A step that is ended says so in one line of
# stars; what srun says after it ("Killed", "Exited with exit code 143") is a symptom.
_CAUSES: tuple[tuple[str, str, bool], ...] = (
    (
        r"DUE TO TIME LIMIT|Slurm job \S+ has expired",
        (
            "was ended by Slurm: the time limit of its job was reached; ask for more with --time "
            "in the options of --slurm, salloc or sbatch"
        ),
        False,
    ),
    (
        r"DUE TO NODE FAILURE|Node failure on",
        "was ended by Slurm: its node failed; 'sinfo -R' says why",
        True,
    ),
    (
        r"DUE TO PREEMPTION",
        (
            "was ended by Slurm: another job took its node (preemption); use a partition or QOS "
            "that is not preempted, or start again"
        ),
        False,
    ),
    (
        r"oom.kill",
        (
            "was ended by Slurm: it took more memory than its job was given; ask for more with "
            "--mem, or use more nodes, a quantization or a smaller --max-context"
        ),
        False,
    ),
    (
        r"\*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED",
        "was ended by Slurm: its job or step was cancelled (scancel), or the allocation ended",
        False,
    ),
    (
        r"Invalid job id|Expired or invalid job|already completing or completed|job .* revoked",
        "cannot be started: its allocation has ended; get another one and run again",
        False,
    ),
    (
        r"Task launch for \S+ failed on node|Communication connection failure|not responding",
        (
            "cannot be started: slurmd on its node does not answer; 'sinfo -R' and "
            "'scontrol show node' say more"
        ),
        True,
    ),
    (
        r"Unable to contact slurm controller|Unable to confirm allocation|Unable to create step",
        "cannot be started by srun; see whether 'scontrol ping' and 'squeue --me' answer",
        True,
    ),
    (
        r"Could not establish a configuration source|cannot stat file",
        "cannot be started: srun finds no configuration of Slurm; set SLURM_CONF",
        False,
    ),
)
_SPEAKERS = re.compile(r"^(srun|slurmstepd\S*|slurmd\S*): ", re.MULTILINE)


def slurm_cause(stderr_lines: Sequence[str]) -> SlurmCause | None:
    """Return why Slurm ended a worker or did not start it; None where Slurm says nothing of it.

    Args:
        stderr_lines: what srun and the worker wrote, newest last.
    """
    said = [line.strip() for line in stderr_lines if _SPEAKERS.match(line)]
    for pattern, text, may_pass in _CAUSES:
        for line in said:
            if re.search(pattern, line, re.IGNORECASE):
                shown = _SPEAKERS.sub("", line).removeprefix("error: ")[:200]
                return SlurmCause(f"{text} (Slurm: {shown})", may_pass)
    return None
