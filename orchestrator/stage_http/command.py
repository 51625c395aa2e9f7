"""The subcommand `orchestrator stage-http`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from orchestrator.stage_http.options import add_options, read_options

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Start one worker with layers A:B of a model and answer `POST /forward` until SIGTERM or Ctrl-C: a
prompt or hidden states come in, hidden states or the next token go out; see docs/stage-http.md."""
_USAGE = "%(prog)s --model-id ID --shard-start A --shard-end B --port P [options]"


def add_parser(subcommands: SubParsers, exits: str) -> None:
    """Add the subcommand; `exits` explains the exit codes."""
    parser = subcommands.add_parser(
        "stage-http",
        help="answer for one stage over HTTP",
        usage=_USAGE,
        description=_ABOUT,
        epilog=exits,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(parser)
    parser.set_defaults(handler=lambda parsed: main(parser, parsed))


def main(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    """Run the subcommand and return the exit code."""
    options = read_options(parser, parsed)
    # Imported here, so that --help and usage errors answer at once.
    from orchestrator.command import finish
    from orchestrator.stage_http.server import serve_stage

    return finish(lambda hold: serve_stage(options), as_json=False)
