"""The command line: `orchestrator run`, `bench`, `plan`, `doctor`, `setup`, `fetch`, and others."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from orchestrator import __version__
from orchestrator.benchmark.command import BENCH
from orchestrator.bundle import command as bundle_command
from orchestrator.bundle.location import default_folder
from orchestrator.cache_command import CACHE
from orchestrator.chat.command import CHAT
from orchestrator.config import surroundings
from orchestrator.doctor.command import DOCTOR
from orchestrator.exit_words import exit_words
from orchestrator.fetch_command import FETCH
from orchestrator.plan_command import PLAN
from orchestrator.run_command import RUN
from orchestrator.serve.command import SERVE
from orchestrator.setup.command import SETUP
from orchestrator.stage_http.command import STAGE_HTTP
from orchestrator.subcommand import Parser

_DESCRIPTION = "Split one language model over several hosts and stream exactly the text it gives."
_SUBCOMMANDS = (RUN, CHAT, SERVE, STAGE_HTTP, BENCH, PLAN, FETCH, CACHE, DOCTOR, SETUP)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        parser = _parser()
        parsed = parser.parse_args(argv)
        command = sys.argv if argv is None else [parser.prog, *argv]
        exit_code: int = parsed.handler(parsed, command)
        return exit_code
    except KeyboardInterrupt:  # While Python still imports; a command tells of it by itself.
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog="orchestrator",
        description=_DESCRIPTION,
        epilog=exit_words(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"stageline {__version__}")
    subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    for subcommand in _SUBCOMMANDS:
        subcommand.add_to(subcommands, exit_words(subcommand.name))
    bundle_command.add_parser(subcommands, default_folder(surroundings().state_dir))
    return parser
