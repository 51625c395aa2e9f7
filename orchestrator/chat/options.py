"""The options of `orchestrator chat`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from orchestrator.generation_options import GenerationOptions, add_generation_flags
from orchestrator.pipeline_options import PipelineOptions, add_bundle_flags, add_pipeline_options
from orchestrator.plan_options import options_from


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions(GenerationOptions, PipelineOptions):
    """What the command line asked for; see `add_options` for the meaning of each."""

    system: str | None


def read_options(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> ChatOptions:
    """Return the options; ends the program with a usage error where they contradict."""
    options = options_from(ChatOptions, parsed)
    options = replace(options, stop=tuple(options.stop or ()))
    complaint = options.complaint()
    if complaint is not None:
        parser.error(complaint)
    for flag, text in (("--system", options.system or ""), *(("--stop", s) for s in options.stop)):
        if not text.isprintable() and "\udc80" <= max(text) <= "\udcff":
            parser.error(f"{flag} is not UTF-8; give it as UTF-8 text")
    return options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_pipeline_options(parser)
    chat = parser.add_argument_group("chat")
    chat.add_argument("--system", metavar="TEXT", help="system message before the chat")
    add_generation_flags(
        parser.add_argument_group("generation (greedy unless --temperature is given)")
    )
    add_bundle_flags(parser.add_argument_group("output"))
    parser.set_defaults(json=False)
