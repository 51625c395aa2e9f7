"""The subcommand `orchestrator bench`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from orchestrator.benchmark.options import add_options, read_options

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Start the stages as a run does and measure, on these hosts: the first token, prefill and decode,
what each stage does in the time of a token, how much of the memory's speed it uses, and several
requests at once. Every figure is a median with its spread; one request before them all is told
apart."""
_USAGE = "%(prog)s (--hosts FILE | --local N | --slurm) --model-id ID [options]"


def add_parser(subcommands: SubParsers, exits: str) -> None:
    """Add the subcommand; `exits` explains the exit codes."""
    parser = subcommands.add_parser(
        "bench",
        help="measure speed on your hosts, and where the time goes",
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
    from orchestrator.benchmark.bench import bench
    from orchestrator.command import finish

    return finish(lambda hold: bench(options, sys.argv, hold), as_json=options.json)
