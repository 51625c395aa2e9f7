"""The subcommand `orchestrator bundle` and its actions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from worker.protocol.exits import ExitCode

if TYPE_CHECKING:
    from orchestrator.bundle.report import Report
    from orchestrator.bundle.screen import Screen

    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

_SHOW = (
    "Show what ran where, the timeline of the start, memory, the time of each op, and the first "
    "cause of a failure. Also for the bundle of a killed run."
)
_DIAGNOSE = (
    "Say what went wrong first, on which stage and host and in which phase, what shows it, and "
    "what to do; then what followed from it. The exit code is 0 whatever is found."
)
_REPORT = (
    "Write one HTML page that needs nothing else: diagnosis, timeline, ops, memory, downloads, "
    "requests, failures, configuration. It can be read in any browser, printed and sent."
)
_TRACE = "Write a trace for https://ui.perfetto.dev (which keeps it in the browser) or Chrome."
_PACK = (
    "Make one archive to send to somebody: secrets, user names and home folders are taken out. "
    "`show`, `diagnose`, `report` and `trace` read archives too."
)


def add_parser(subparsers: SubParsers, folder: Path) -> None:
    """Add `bundle` with its actions; the default of `handler` runs the one that was asked for.

    Args:
        subparsers: what `add_subparsers` gave.
        folder: where runs leave their bundles, for a call without PATH.
    """
    parser = subparsers.add_parser(
        "bundle",
        help="explain what a run left behind",
        description="Explain what a run left behind; `bundle ACTION --help` says more.",
        epilog="exits with 0, or with 2 where the bundle cannot be read or the file not written",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="bundle_action", required=True, metavar="ACTION")
    _add(actions, folder, "show", _show, "tell all about a run", _SHOW)
    _add(actions, folder, "diagnose", _diagnose, "say what went wrong and what to do", _DIAGNOSE)
    _add(actions, folder, "report", _report, "write an HTML page", _REPORT, "FILE.html")
    _add(actions, folder, "trace", _trace, "write a trace for Perfetto", _TRACE, "FILE.json")
    packed = _add(
        actions, folder, "pack", _pack, "make an archive to pass on", _PACK, "FILE.tar.gz|FILE.zip"
    )
    packed.add_argument(
        "--hide-hosts",
        action="store_true",
        help="also replace the names and addresses of hosts, the same by the same",
    )


def _add(
    actions: SubParsers,
    folder: Path,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help_text: str,
    description: str,
    output: str | None = None,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=help_text, description=description, allow_abbrev=False)
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=folder,
        metavar="PATH",
        help="a bundle, an archive of one, or a folder of bundles: its newest (default: "
        "%(default)s)",
    )
    if output is None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
    else:
        parser.add_argument(
            *("-o", "--output"),
            type=Path,
            metavar=output,
            help="the file to write (default: named after the bundle, in this folder)",
        )
    parser.set_defaults(handler=lambda args, command: _guarded(run, args))
    return parser


def _guarded(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    from orchestrator.bundle.opened import NoBundleError
    from orchestrator.bundle.output import OutputError

    try:
        return run(args)
    except (NoBundleError, OutputError) as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.USAGE


def _show(args: argparse.Namespace) -> int:
    from orchestrator.bundle.report import report_json
    from orchestrator.bundle.show import show

    return _tell(args, show, report_json)


def _diagnose(args: argparse.Namespace) -> int:
    from orchestrator.bundle.report import diagnosis_json
    from orchestrator.bundle.show import show_run
    from orchestrator.bundle.show_findings import show_diagnosis

    def tell(report: Report, screen: Screen) -> None:
        show_run(report, screen)
        show_diagnosis(report, screen)

    return _tell(args, tell, diagnosis_json)


def _tell(
    args: argparse.Namespace,
    tell: Callable[[Report, Screen], None],
    as_json: Callable[[Report], str],
) -> int:
    from orchestrator.bundle.opened import open_bundle
    from orchestrator.bundle.report import report_of
    from orchestrator.bundle.screen import screen_for

    report = report_of(open_bundle(args.path))
    try:
        if args.json:
            print(as_json(report))
        else:
            tell(report, screen_for(sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output (`| head`) has seen enough; python would complain at its exit.
        sys.stdout = None
    return ExitCode.OK


def _report(args: argparse.Namespace) -> int:
    from orchestrator.bundle.html.page import page_of
    from orchestrator.bundle.opened import open_bundle
    from orchestrator.bundle.output import output_path, write_text

    bundle = open_bundle(args.path)
    path = output_path(args.output, bundle.path, ".html")
    write_text(path, page_of(bundle))
    print(path)
    return ExitCode.OK


def _trace(args: argparse.Namespace) -> int:
    from orchestrator.bundle.opened import open_bundle
    from orchestrator.bundle.output import output_path, write_text
    from orchestrator.bundle.trace import trace_json

    bundle = open_bundle(args.path)
    path = output_path(args.output, bundle.path, ".trace.json")
    write_text(path, trace_json(bundle))
    print(path)
    return ExitCode.OK


def _pack(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from orchestrator.bundle.opened import bundle_folder
    from orchestrator.bundle.output import output_path
    from orchestrator.bundle.pack import pack, packed_sentence
    from orchestrator.bundle.reader import read_bundle

    with bundle_folder(args.path) as (folder, name):
        bundle = replace(read_bundle(folder), path=name)
        target = output_path(args.output, name, ".tar.gz")
        packed = pack(folder, bundle, target, hide_hosts=args.hide_hosts)
    print(packed.path)
    print(packed_sentence(packed), file=sys.stderr)
    return ExitCode.OK
