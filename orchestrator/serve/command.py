"""The subcommand `orchestrator serve`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.serve.options import ServeOptions, add_options, read_options
from orchestrator.subcommand import Subcommand


def _serve(options: ServeOptions, command: Sequence[str]) -> int:
    from orchestrator.command import finish
    from orchestrator.serve.server import serve

    return finish(lambda hold: serve(options, command, hold), as_json=False)


SERVE = Subcommand(
    name="serve",
    short="answer over HTTP, as OpenAI's interface does",
    about="""\
Start one worker for each stage and answer over HTTP as OpenAI's interface does, until SIGTERM or
Ctrl-C: /v1/models, /v1/chat/completions, /v1/completions, a chat page at /, /health, /metrics.""",
    usage="%(prog)s (--hosts FILE | --local N | --slurm) (--model-id ID | --stub) [options]",
    add_options=add_options,
    read_options=read_options,
    run=_serve,
)
