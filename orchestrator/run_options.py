"""The options of `orchestrator run`: their flags, and the frozen values that come of them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from orchestrator.generation_options import GenerationOptions, add_generation_flags
from orchestrator.pipeline_options import (
    PipelineOptions,
    add_bundle_flags,
    add_pipeline_options,
)
from orchestrator.plan_options import options_from


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(GenerationOptions, PipelineOptions):
    """What the command line asked for; see `add_options` for the meaning of each."""

    prompt: str | None
    prompt_file: str | None
    raw: bool
    system: str | None
    ignore_eos: bool


def read_options(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> RunOptions:
    """Return the options; ends the program with a usage error where they contradict."""
    options = options_from(RunOptions, parsed)
    options = replace(options, stop=tuple(options.stop or ()))
    complaint = options.complaint()
    if options.raw and options.system is not None:
        complaint = "--system needs the chat template, which --raw leaves out; give one of them"
    if complaint is not None:
        parser.error(complaint)
    return options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_pipeline_options(parser, many=False)
    _add_prompt(parser.add_argument_group("prompt (default: stdin when it is no terminal)"))
    generation = parser.add_argument_group("generation (greedy unless --temperature is given)")
    add_generation_flags(generation)
    generation.add_argument(
        "--ignore-eos", action="store_true", help="go on past end-of-text tokens"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", action="store_true", help="print one JSON object at the end in place of the text"
    )
    add_bundle_flags(output)


def _add_prompt(group: argparse._ArgumentGroup) -> None:
    prompt = group.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument(
        "--prompt-file",
        metavar="FILE",
        help="read it from a UTF-8 file, - for stdin; one line break at the end is dropped",
    )
    group.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    group.add_argument(
        "--raw", action="store_true", help="complete the plain text, without the chat template"
    )
