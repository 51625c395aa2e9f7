"""Options of every command that answers: what is planned, and how the stages then work."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from orchestrator import option_types, wire_encoding
from orchestrator.host_keys import QUANTIZATIONS
from orchestrator.links.names import AUTO, CHAIN, STAR
from orchestrator.option_names import Named, as_flag
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

    def complaint(self, named: Named = as_flag) -> str | None:
        """Tell which options contradict each other, in one sentence that names them so."""
        draft = self.draft_model_id
        draft_id = named("draft_model_id")
        if self.model_id is None and not self.stub:
            model, stub = named("model_id"), named("stub", True)
            return f"give {model} (a folder or a hub id), or {stub} for workers without a model"
        if self.speculate == "draft" and draft is None:
            return f"{named('speculate', 'draft')} needs {draft_id} (a folder or a hub id)"
        if self.speculate in ("off", "ngram") and draft is not None:
            guess = named("speculate", self.speculate)
            return f"{draft_id} is of no use with {guess}; give one of them"
        if self.stub and draft is not None:
            return f"{draft_id} is of no use with {named('stub', True)}; give one of them"
        for name in ("draft_quantization", "draft_device"):
            value = getattr(self, name)
            if value is not None and draft is None:
                return f"{named(name, value)} needs {draft_id} (a folder or a hub id)"
        return None


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
