"""The subcommand `orchestrator stage-http`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.stage_http.options import StageHttpOptions, add_options, read_options
from orchestrator.subcommand import Subcommand


def _serve_stage(options: StageHttpOptions, command: Sequence[str]) -> int:
    from orchestrator.command import finish
    from orchestrator.stage_http.server import serve_stage

    return finish(lambda hold: serve_stage(options), as_json=False)


STAGE_HTTP = Subcommand(
    name="stage-http",
    short="answer for one stage over HTTP",
    about="""\
Start one worker with layers A:B of a model and answer `POST /forward` until SIGTERM or Ctrl-C: a
prompt or hidden states come in, hidden states or the next token go out; see docs/stage-http.md.""",
    usage="%(prog)s --model-id ID --shard-start A --shard-end B --port P [options]",
    add_options=add_options,
    read_options=read_options,
    run=_serve_stage,
)
