"""The subcommand `orchestrator serve`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from orchestrator.serve.options import add_options, read_options

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Start one worker for each stage and answer over HTTP as OpenAI's interface does, until SIGTERM or
Ctrl-C: /v1/models, /v1/chat/completions, /v1/completions, a chat page at /, /health, /metrics."""
_USAGE = "%(prog)s (--hosts FILE | --local N | --slurm) --model-id ID [options]"


def add_parser(subcommands: SubParsers, exits: str) -> None:
    """Add the subcommand; `exits` explains the exit codes."""
    parser = subcommands.add_parser(
        "serve",
        help="answer over HTTP, as OpenAI's interface does",
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
    from orchestrator.serve.server import serve

    return finish(lambda hold: serve(options, sys.argv, hold), as_json=False)
