"""Workers behind any launcher that gives stdin and stdout: docker exec, kubectl exec, srun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.transport.base import Launch
from orchestrator.transport.local import worker_command


def command_launch(
    host: str,
    launcher: Sequence[str],
    python: str | None,
    environment: Mapping[str, str],
    arguments: Sequence[str],
) -> Launch:
    """Return the launcher's words with the worker's command, the interpreter's arguments last."""
    return Launch(host, (*launcher, *worker_command(python, environment, arguments)), "command")
