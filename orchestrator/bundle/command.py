"""The subcommand `orchestrator bundle`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from worker.protocol.exits import ExitCode

if TYPE_CHECKING:
    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: SubParsers, folder: Path) -> None:
    """Add `bundle show`; `main` is set as the default of `handler`.

    Args:
        subparsers: what `add_subparsers` gave.
        folder: where runs leave their bundles, for a call without PATH.
    """
    parser = subparsers.add_parser("bundle", help="read what a run left behind")
    actions = parser.add_subparsers(dest="bundle_action", required=True, metavar="ACTION")
    about = (
        "Show what ran where, the timeline of the start, memory, the time of each op, and the "
        "first cause of a failure. Also for the bundle of a killed run."
    )
    shown = actions.add_parser("show", help="explain a bundle", description=about)
    shown.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=folder,
        metavar="PATH",
        help="a bundle, or a folder of bundles: its newest one (default: %(default)s)",
    )
    shown.add_argument("--json", action="store_true", help="print one JSON object")
    shown.set_defaults(handler=main)


def main(args: argparse.Namespace) -> int:
    """Run the subcommand and return the exit code."""
    from orchestrator.bundle.location import bundles_in
    from orchestrator.bundle.reader import is_bundle, read_bundle
    from orchestrator.bundle.report import report_json, report_of
    from orchestrator.bundle.screen import screen_for
    from orchestrator.bundle.show import show

    path: Path = args.path
    if not is_bundle(path):
        bundles = bundles_in(path)
        if not bundles:
            print(
                f"{path} is no bundle and holds none; give the path that a run printed at its end",
                file=sys.stderr,
            )
            return ExitCode.USAGE
        path = bundles[-1]
    report = report_of(read_bundle(path))
    try:
        if args.json:
            print(report_json(report))
        else:
            show(report, screen_for(sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output (`| head`) has seen enough; python would complain at its exit.
        sys.stdout = None
    return ExitCode.OK
