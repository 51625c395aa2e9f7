"""Worker processes on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import worker.protocol
from orchestrator.transport.base import Launch
from orchestrator.transport.interpreter import interpreter_words

# Variables that say which stage of which model a worker is; a user's shell may have them from work
# by hand. MODEL would narrow the errands for every model of a cache to one.
FOREIGN_VARIABLES = ("STAGE", "NUM_STAGES", "MODEL")
# Without the current folder in its path, where a `worker.py` may lie.
INSTALLED = ("-P", "-m", "worker")


def local_launch(
    host: str, python: str | None, environment: Mapping[str, str], arguments: Sequence[str]
) -> Launch:
    """Return the command of a worker here.

    It runs the same code as this process, with the same interpreter unless `python` says
    otherwise: `-P` and PYTHONPATH keep a `worker.py` in the current folder from being imported.
    """
    here = str(Path(worker.protocol.__file__).resolve().parents[2])
    given = environment.get("PYTHONPATH")
    path = f"{here}:{given}" if given else here
    command = worker_command(
        python or sys.executable, {**environment, "PYTHONPATH": path}, (*INSTALLED, *arguments)
    )
    return Launch(host, command, "local")


def worker_command(
    python: str | None, environment: Mapping[str, str], arguments: Sequence[str]
) -> tuple[str, ...]:
    """Return `env … python …`; env replaces itself, so the pid is the worker's.

    Args:
        python: the interpreter; None finds one where the command runs.
        environment: variables to set.
        arguments: the interpreter's.
    """
    unset = [text for name in FOREIGN_VARIABLES for text in ("-u", name)]
    settings = [f"{name}={value}" for name, value in environment.items()]
    return ("env", *unset, *settings, *interpreter_words(python), *arguments)
