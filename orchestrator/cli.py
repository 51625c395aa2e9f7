"""The command line: `orchestrator run`, `bench`, `plan`, `doctor`, `setup`, `fetch`, and others."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from orchestrator import __version__, cache_command, fetch_command, plan_command
from orchestrator.benchmark import command as bench_command
from orchestrator.bundle import command as bundle_command
from orchestrator.bundle.location import default_folder
from orchestrator.chat import command as chat_command
from orchestrator.config import surroundings
from orchestrator.doctor import command as doctor_command
from orchestrator.exit_words import exit_words
from orchestrator.run_options import add_options, read_options
from orchestrator.serve import command as serve_command
from orchestrator.setup import command as setup_command
from orchestrator.stage_http import command as stage_http_command

_DESCRIPTION = "Split one language model over several hosts and stream exactly the text it gives."
_RUN = """\
Start one worker for each stage, answer one prompt, end the workers.
stdout gets the text and nothing else; everything else goes to stderr."""
_RUN_USAGE = "%(prog)s (--hosts FILE | --local N | --slurm) --model-id ID [--prompt TEXT] [options]"
_COMMANDS = {
    "chat": chat_command,
    "serve": serve_command,
    "stage-http": stage_http_command,
    "bench": bench_command,
    "plan": plan_command,
    "fetch": fetch_command,
    "cache": cache_command,
    "doctor": doctor_command,
    "setup": setup_command,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        return _run(argv)
    except KeyboardInterrupt:  # While Python still imports; a command tells of it by itself.
        return 128 + signal.SIGINT


def _run(argv: Sequence[str] | None) -> int:
    parser, run_parser = _parsers()
    parsed = parser.parse_args(argv)
    if parsed.subcommand != "run":
        exit_code: int = parsed.handler(parsed)
        return exit_code
    options = read_options(run_parser, parsed)
    # Imported here, so that --help and usage errors answer at once.
    from orchestrator.run import run

    return run(options, sys.argv if argv is None else [parser.prog, *argv])


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(
        prog="orchestrator",
        description=_DESCRIPTION,
        epilog=exit_words(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"stageline {__version__}")
    subcommands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND")
    run = subcommands.add_parser(
        "run",
        help="answer one prompt",
        usage=_RUN_USAGE,
        description=_RUN,
        epilog=exit_words("run"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_options(run)
    for name, command in _COMMANDS.items():
        command.add_parser(subcommands, exit_words(name))
    bundle_command.add_parser(subcommands, default_folder(surroundings().state_dir))
    return parser, run
