"""Options of every command that answers: what is planned, and how the stages then work."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from orchestrator import option_types, wire_encoding
from orchestrator.host_keys import QUANTIZATIONS
from orchestrator.links.names import AUTO, CHAIN, STAR
from orchestrator.plan_options import PlanOptions, add_plan_options
from orchestrator.speculation.drafter import SpeculationKind
from worker.protocol.encodings import Encoding

DEFAULT_RESTARTS = 3
ReuseKind = Literal["turns", "chunks", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(PlanOptions):
    """What a pipeline is made from; see `add_pipeline_options` for the meaning of each."""

    stub: bool
    restarts: int
    wire_encoding: str
    links: str
    speculate: SpeculationKind
    draft_model_id: str | None
    draft_quantization: str | None
    draft_device: str | None
    prefix_reuse: ReuseKind
    bundle_dir: Path | None
    no_bundle: bool

    def complaint(self) -> str | None:
        """Tell which options contradict each other, in one sentence."""
        draft = self.draft_model_id
        if self.model_id is None and not self.stub:
            return "give --model-id (a folder or a hub id), or --stub for workers without a model"
        if self.speculate == "draft" and draft is None:
            return "--speculate draft needs --draft-model-id (a folder or a hub id)"
        if self.speculate in ("off", "ngram") and draft is not None:
            return (
                f"--draft-model-id is of no use with --speculate {self.speculate}; give one of them"
            )
        if self.stub and draft is not None:
            return "--draft-model-id is of no use with --stub; give one of them"
        for flag, value in (
            ("--draft-quantization", self.draft_quantization),
            ("--draft-device", self.draft_device),
        ):
            if value is not None and draft is None:
                return f"{flag} {value} needs --draft-model-id (a folder or a hub id)"
        return None


def pipeline_options(given: Mapping[str, Any]) -> PipelineOptions:
    """Return the options of a program that has no command line; the others are the defaults.

    Raises:
        TypeError: there is no option of that name.
        ValueError: two of them contradict each other; one sentence, with the flags' names.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_pipeline_options(parser)
    add_bundle_flags(parser.add_argument_group())
    names = {field.name for field in fields(PipelineOptions)} - {"json"}
    for name in given:
        if name not in names:
            raise TypeError(f"there is no option {name!r}; known are {', '.join(sorted(names))}")
    defaults = {name: parser.get_default(name) for name in names}
    options = PipelineOptions(**{**defaults, "json": False, **given})
    complaint = options.complaint()
    if complaint is not None:
        raise ValueError(complaint)
    return options


def add_pipeline_options(parser: argparse.ArgumentParser, *, many: bool = True) -> None:
    """Declare the flags of `PipelineOptions`, but for those of `add_bundle_flags`.

    Args:
        parser: gets them.
        many: whether more than one request is answered.
    """
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
        "(default: %(default)s; 0 ends everything at the first failure)",
    )
    _add_links(parser.add_argument_group("links between stages"))
    add_speculation_flags(parser.add_argument_group("speculation (the answer is the same, sooner)"))
    if many:
        _add_reuse(parser.add_argument_group("prompts that begin as earlier ones did"))
    else:
        parser.set_defaults(prefix_reuse="off")


def add_bundle_flags(group: argparse._ActionsContainer) -> None:
    """Declare where the diagnostic bundle goes."""
    bundle = group.add_mutually_exclusive_group()
    bundle.add_argument(
        "--bundle-dir",
        type=Path,
        metavar="DIR",
        help="folder to make the diagnostic bundle in (default: $XDG_STATE_HOME/stageline/bundles)",
    )
    bundle.add_argument("--no-bundle", action="store_true", help="write no diagnostic bundle")


def add_speculation_flags(group: argparse._ActionsContainer) -> None:
    """Declare who guesses tokens ahead."""
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


def _add_reuse(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prefix-reuse",
        choices=get_args(ReuseKind),
        default="turns",
        help="what need not be computed again: turns of a chat as they were answered, whole chunks "
        "of any prompt, or off; see docs/prefixes.md (default: %(default)s)",
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
