"""A pipeline of stages that take as long as they are told to."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.specs import StageSpec
from worker import __version__
from worker.protocol.capabilities import Capability
from worker.protocol.codec import PROTOCOL_VERSION, encode_event, encode_ready
from worker.protocol.events import Envelope, Starting
from worker.protocol.ready import Ready

PROGRAM = Path(__file__).with_name("paced_stage.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePace:
    """What a stage takes.

    Attributes:
        step_ms: an op of decode steps, however many.
        row_ms: each of its rows on top.
        token_ms: each token of a prefill chunk.
        link_ms: the way to it, and the same back.
    """

    step_ms: float = 10.0
    row_ms: float = 0.0
    token_ms: float = 1.0
    link_ms: float = 0.0


def paced_specs(
    num_stages: int,
    pace: StagePace,
    *,
    capabilities: tuple[str, ...] = (Capability.TOGETHER,),
    max_rows: int = 16,
    hidden_chars: int = 1152,
) -> list[StageSpec]:
    """Return what to start."""
    return [
        _spec(stage, num_stages, pace, capabilities, max_rows, hidden_chars)
        for stage in range(num_stages)
    ]


def _spec(
    stage: int,
    num_stages: int,
    pace: StagePace,
    capabilities: tuple[str, ...],
    max_rows: int,
    hidden_chars: int,
) -> StageSpec:
    hello = Starting(
        protocol_version=PROTOCOL_VERSION,
        version=__version__,
        python="3",
        pid=0,
        host="paced",
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
        capabilities=capabilities,
        max_rows=max_rows,
    )
    lines = (encode_event(hello, Envelope(stage=stage)), encode_ready(ready))
    told = [line.decode().strip() for line in lines]
    words = (*told, json.dumps(asdict(pace)), str(hidden_chars))
    return StageSpec(
        stage=stage,
        num_stages=num_stages,
        host="paced",
        transport="command",
        code="installed",
        command=(sys.executable, "-I", "-S", str(PROGRAM), *words),
    )
