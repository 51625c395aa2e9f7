"""A pipeline of stages that cost next to nothing, so that what is left is the orchestrator."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.specs import StageSpec
from worker import __version__
from worker.protocol.codec import PROTOCOL_VERSION, encode_event, encode_ready
from worker.protocol.events import Envelope, Starting
from worker.protocol.ready import Ready

PROGRAM = Path(__file__).with_name("quick_stage.py")


def quick_specs(num_stages: int, hidden_chars: int = 1152) -> list[StageSpec]:
    """Return what to start.

    Args:
        num_stages: how many.
        hidden_chars: length of the base64 text of a hidden state.
    """
    return [_spec(stage, num_stages, hidden_chars) for stage in range(num_stages)]


def _spec(stage: int, num_stages: int, hidden_chars: int) -> StageSpec:
    hello = Starting(
        protocol_version=PROTOCOL_VERSION,
        version=__version__,
        python="3",
        pid=0,
        host="quick",
        nonce="NONCE",
    )
    ready = Ready(
        pid=0,
        stage=stage,
        num_stages=num_stages,
        protocol_version=PROTOCOL_VERSION,
        version=__version__,
        layer_range=(stage, stage + 1),
        total_blocks=num_stages,
        hidden_dim=hidden_chars * 3 // 8,
        vocab_size=100,
    )
    lines = (encode_event(hello, Envelope(stage=stage)), encode_ready(ready))
    told = [line.decode().strip() for line in lines]
    command = (sys.executable, "-I", "-S", str(PROGRAM), *told, str(hidden_chars))
    return StageSpec(
        stage=stage,
        num_stages=num_stages,
        host="quick",
        transport="command",
        code="installed",
        command=command,
    )
