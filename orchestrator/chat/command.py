"""The subcommand `orchestrator chat`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from orchestrator.chat.options import add_options, read_options

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Start one worker for each stage, keep them warm and chat: at a terminal, or with a question on each
line of stdin. stdout gets the answers and nothing else; /help tells the commands of a chat."""
_USAGE = "%(prog)s (--hosts FILE | --local N | --slurm) --model-id ID [options]"


def add_parser(subcommands: SubParsers, exits: str) -> None:
    """Add the subcommand; `exits` explains the exit codes."""
    parser = subcommands.add_parser(
        "chat",
        help="chat in the terminal",
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
    from orchestrator.chat.chat import chat

    return chat(options, sys.argv)
