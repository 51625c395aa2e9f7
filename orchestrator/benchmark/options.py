"""The options of `orchestrator bench`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import option_types
from orchestrator.links.names import STAR
from orchestrator.pipeline_options import (
    PipelineOptions,
    add_bundle_flags,
    add_speculation_flags,
)
from orchestrator.plan_options import add_json_flag, add_plan_options, options_from
from orchestrator.wire_encoding import AUTO

DEFAULT_STREAMS = (1, 2, 4, 8, 16)
_MOST_STREAMS = 64  # As many KV caches as a worker holds.


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(PipelineOptions):
    """What the command line asked for; see `add_options` for the meaning of each."""

    prompt_tokens: int
    new_tokens: int
    streams: tuple[int, ...]
    rounds: int
    html: Path | None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    model = add_plan_options(parser, needs_model=False)
    model.add_argument(
        "--stub", action="store_true", help="workers without a model, for trying out"
    )
    add_speculation_flags(
        parser.add_argument_group("speculation (measured beside decoding without)")
    )
    # A stage that is started again, or a prompt that is known, would make odd figures.
    parser.set_defaults(restarts=0, prefix_reuse="off", links=STAR, wire_encoding=AUTO)
    work = parser.add_argument_group("what is measured")
    for flag, default, text in (
        ("--prompt-tokens", 256, "tokens of each prompt, about"),
        ("--new-tokens", 32, "tokens that each request generates"),
        ("--rounds", 3, "times that everything is measured, in turn"),
    ):
        work.add_argument(
            flag,
            type=option_types.count,
            default=default,
            metavar="N",
            help=f"{text} (default: %(default)s)",
        )
    work.add_argument(
        "--streams",
        type=read_streams,
        default=DEFAULT_STREAMS,
        metavar="N,N",
        help="how many requests at once, one number after the other; one alone is measured in any "
        f"case (default: {','.join(map(str, DEFAULT_STREAMS))})",
    )
    output = parser.add_argument_group("output")
    add_json_flag(output)
    output.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write one self-contained page with the tables and plots",
    )
    add_bundle_flags(output)


def read_options(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> BenchOptions:
    """Return the options; ends the program with a usage error where they contradict."""
    options = options_from(BenchOptions, parsed)
    if (complaint := options.complaint()) is not None:
        parser.error(complaint)
    if options.new_tokens < 2:
        parser.error(
            f"--new-tokens {options.new_tokens} has nothing after the first; give 2 or more"
        )
    if options.html is not None and not options.html.absolute().parent.is_dir():
        parser.error(f"--html {options.html}: there is no folder {options.html.absolute().parent}")
    if options.html is not None and options.html.is_dir():
        parser.error(f"--html {options.html} is a folder; name a file to write")
    return replace(options, streams=tuple(sorted({1, *options.streams})))


def read_streams(text: str) -> tuple[int, ...]:
    """Read numbers of requests: `1,4,16`."""
    counts = tuple(option_types.count(part) for part in text.split(","))
    if max(counts) > _MOST_STREAMS:
        raise argparse.ArgumentTypeError(
            f"{max(counts)} requests at once are more than a worker keeps caches for; give at most "
            f"{_MOST_STREAMS}"
        )
    return counts
