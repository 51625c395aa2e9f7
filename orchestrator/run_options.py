"""The options of `orchestrator run`: their flags, and the frozen values that come of them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from orchestrator import option_types, wire_encoding
from orchestrator.host_keys import QUANTIZATIONS
from orchestrator.links.names import AUTO, CHAIN, STAR
from orchestrator.plan_options import PlanOptions, add_plan_options, options_from
from orchestrator.request import DEFAULT_NEW_TOKENS
from orchestrator.speculation.drafter import SpeculationKind
from worker.protocol import schema
from worker.protocol.encodings import Encoding

DEFAULT_RESTARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(PlanOptions):
    """What the command line asked for; see `add_options` for the meaning of each."""

    prompt: str | None
    prompt_file: str | None
    raw: bool
    system: str | None
    max_new_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    stub: bool
    restarts: int
    wire_encoding: str
    links: str
    speculate: SpeculationKind
    draft_model_id: str | None
    draft_quantization: str | None
    draft_device: str | None
    bundle_dir: Path | None
    no_bundle: bool


def read_options(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> RunOptions:
    """Return the options; ends the program with a usage error where they contradict."""
    options = options_from(RunOptions, parsed)
    options = replace(options, stop=tuple(options.stop or ()))
    if options.model_id is None and not options.stub:
        parser.error(
            "give --model-id (a folder or a hub id), or --stub for workers without a model"
        )
    if options.raw and options.system is not None:
        parser.error("--system needs the chat template, which --raw leaves out; give one of them")
    if options.speculate == "draft" and options.draft_model_id is None:
        parser.error("--speculate draft needs --draft-model-id (a folder or a hub id)")
    if options.speculate in ("off", "ngram") and options.draft_model_id is not None:
        parser.error(
            f"--draft-model-id is of no use with --speculate {options.speculate}; give one of them"
        )
    if options.stub and options.draft_model_id is not None:
        parser.error("--draft-model-id is of no use with --stub; give one of them")
    for flag, value in (
        ("--draft-quantization", options.draft_quantization),
        ("--draft-device", options.draft_device),
    ):
        if value is not None and options.draft_model_id is None:
            parser.error(f"{flag} {value} needs --draft-model-id (a folder or a hub id)")
    return options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    model = add_plan_options(parser, needs_model=False)
    model.add_argument(
        "--stub", action="store_true", help="workers without a model, for trying out"
    )
    faults = parser.add_argument_group("faults")
    faults.add_argument(
        "--restarts",
        type=option_types.whole,
        default=DEFAULT_RESTARTS,
        metavar="N",
        help="times in a row that a lost stage is started again, on its host or on a spare one "
        "(default: %(default)s; 0 ends the run at the first failure)",
    )
    _add_links(parser.add_argument_group("links between stages"))
    _add_prompt(parser.add_argument_group("prompt (default: stdin when it is no terminal)"))
    _add_generation(parser.add_argument_group("generation (greedy unless --temperature is given)"))
    _add_speculation(parser.add_argument_group("speculation (the answer is the same, sooner)"))
    _add_output(parser.add_argument_group("output"))


def _add_speculation(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--speculate",
        choices=get_args(SpeculationKind),
        default="auto",
        help="guess tokens ahead and verify many in one pass: ngram from what the text had before, "
        "draft with a small model (default: auto: draft with --draft-model-id, else off)",
    )
    group.add_argument(
        "--draft-model-id",
        metavar="ID",
        help="folder or hub id of a small model of the same family, to guess with; it runs here",
    )
    group.add_argument(
        "--draft-quantization",
        choices=QUANTIZATIONS,
        help="of the draft model (default: bfloat16)",
    )
    group.add_argument(
        "--draft-device",
        type=option_types.device,
        metavar="DEVICE",
        help="of the draft model (default: as for the stages: cuda, mps or cpu, what is there)",
    )


def _add_links(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--links",
        choices=(STAR, CHAIN, AUTO),
        default=STAR,
        help="star: hidden states go by way of this program; chain: straight from stage to stage "
        "over TCP with TLS, where the stages can reach each other; auto: chain between different "
        "hosts (default: %(default)s)",
    )
    group.add_argument(
        "--wire-encoding",
        choices=(wire_encoding.AUTO, *map(str, Encoding)),
        default=wire_encoding.AUTO,
        help="how hidden states travel: bf16 and bf16-planes-zstd are exact, int8-row-top8 halves "
        "them and changes the answer a little (default: %(default)s: bf16, and "
        "bf16-planes-zstd for long prompts over links that are measured to be slow)",
    )


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


def _add_generation(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-new-tokens",
        type=option_types.count,
        metavar="N",
        help=f"most tokens to generate (default: {DEFAULT_NEW_TOKENS}, or what the context leaves)",
    )
    for flag, default, rule, text in (
        ("--temperature", 0.0, schema.NON_NEGATIVE_NUMBER, "0 is greedy"),
        ("--top-p", 1.0, schema.FRACTION, "keep the smallest set with this probability"),
        ("--min-p", 0.0, schema.FRACTION, "drop tokens below this fraction of the likeliest"),
        ("--repetition-penalty", 1.0, schema.POSITIVE_NUMBER, "above 1 avoids repetition"),
    ):
        group.add_argument(
            flag,
            type=option_types.number(rule),
            default=default,
            metavar="X",
            help=f"{text} (default: %(default)s)",
        )
    group.add_argument(
        "--top-k",
        type=option_types.whole,
        default=0,
        metavar="K",
        help="keep the K likeliest; 0 keeps all",
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="same seed, same text (default: random)"
    )
    group.add_argument(
        "--stop",
        action="append",
        type=option_types.stop,
        metavar="TEXT",
        help="end before this text; may be given several times",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on past end-of-text tokens")


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--json", action="store_true", help="print one JSON object at the end in place of the text"
    )
    bundle = group.add_mutually_exclusive_group()
    bundle.add_argument(
        "--bundle-dir",
        type=Path,
        metavar="DIR",
        help="folder to make the diagnostic bundle in (default: $XDG_STATE_HOME/stageline/bundles)",
    )
    bundle.add_argument("--no-bundle", action="store_true", help="write no diagnostic bundle")
