"""Options of every command that generates text: how long it may get, and how it is chosen."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from orchestrator import option_types
from orchestrator.request import DEFAULT_NEW_TOKENS
from worker.protocol import schema


# Without slots: a class of options has this one and another as its bases.
@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """What the command line says of answers; see `add_generation_flags`."""

    max_new_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    seed: int | None
    stop: tuple[str, ...]


def add_generation_flags(group: argparse._ArgumentGroup) -> None:
    """Declare the flags of `GenerationOptions`; --stop is None where it is not given."""
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
