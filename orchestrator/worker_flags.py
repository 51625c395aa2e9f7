"""Flags of how workers compute; a key in the hosts file may say otherwise for its host."""

from __future__ import annotations

import argparse

from orchestrator import option_types
from orchestrator.host_keys import ENGINES, QUANTIZATIONS
from orchestrator.request import DEFAULT_PREFILL_CHUNK


def add_worker_flags(group: argparse._ArgumentGroup) -> None:
    """Declare all that a worker of a pipeline is told."""
    add_quantization_flag(group)
    group.add_argument(
        "--engine",
        choices=ENGINES,
        help="fast (default); stock: torch's kernels and the model's own forward alone; graphs: "
        "CUDA graphs, never run on a GPU so far",
    )
    add_device_flag(group)
    group.add_argument(
        "--threads",
        type=option_types.count,
        metavar="N",
        help="compute threads (default: cores / local stages)",
    )
    group.add_argument(
        "--max-context",
        type=option_types.count,
        metavar="N",
        help="most tokens of prompt and answer together",
    )
    group.add_argument(
        "--prefill-chunk",
        type=option_types.count,
        default=DEFAULT_PREFILL_CHUNK,
        metavar="N",
        help="tokens of the prompt per step (default: %(default)s)",
    )
    add_trust_flag(group)


def add_quantization_flag(group: argparse._ArgumentGroup) -> None:
    """Declare --quantization."""
    group.add_argument("--quantization", choices=QUANTIZATIONS, help="default: bfloat16")


def add_device_flag(group: argparse._ArgumentGroup) -> None:
    """Declare --device."""
    group.add_argument(
        "--device", type=option_types.device, metavar="DEVICE", help="auto, cpu, cuda, cuda:N, mps"
    )


def add_trust_flag(group: argparse._ArgumentGroup) -> None:
    """Declare --trust-remote-code."""
    group.add_argument(
        "--trust-remote-code", action="store_true", help="run code that comes with the model"
    )
