"""The subcommand `orchestrator run`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.run_options import RunOptions, add_options, read_options
from orchestrator.subcommand import Subcommand


def _run(options: RunOptions, command: Sequence[str]) -> int:
    from orchestrator.run import run

    return run(options, command)


RUN = Subcommand(
    name="run",
    short="answer one prompt",
    about="""\
Start one worker for each stage, answer one prompt, end the workers.
stdout gets the text and nothing else; everything else goes to stderr.""",
    usage="%(prog)s (--hosts FILE | --local N | --slurm) (--model-id ID | --stub) [options]",
    add_options=add_options,
    read_options=read_options,
    run=_run,
)
