"""A pipeline of stages that cost next to nothing, so that what is left is the orchestrator."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.specs import StageSpec
from worker import __version__
from worker.protocol.codec import PROTOCOL_VERSION, encode_event, encode_ready
from worker.protocol.events import Envelope, Op, Starting
from worker.protocol.ready import Ready

PROGRAM = Path(__file__).with_name("quick_stage.py")


def quick_specs(
    num_stages: int, hidden_chars: int = 1152, *, tells: bool = False
) -> list[StageSpec]:
    """Return what to start.

    Args:
        num_stages: how many.
        hidden_chars: length of the base64 text of a hidden state.
        tells: whether an event of each op follows its reply, as a worker's does.
    """
    return [_spec(stage, num_stages, hidden_chars, tells) for stage in range(num_stages)]


def _spec(stage: int, num_stages: int, hidden_chars: int, tells: bool) -> StageSpec:
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
    event = Op(
        op="OP",
        rid="RID",
        duration_ms=0.211,
        idle_ms_before=0.302,
        ok=True,
        in_bytes=1261,
        out_bytes=1196,
        seq_len=1,
        compute_ms={"decode": 0.021, "load": 0.013, "forward": 0.104, "dump": 0.015},
    )
    envelope = Envelope(stage=stage, wall_ms=1.796e12, uptime_ms=123456.789)
    lines = (encode_event(hello, Envelope(stage=stage)), encode_ready(ready))
    told = [line.decode().strip() for line in lines]
    after = encode_event(event, envelope).decode().strip() if tells else ""
    command = (sys.executable, "-I", "-S", str(PROGRAM), *told, str(hidden_chars), after)
    return StageSpec(
        stage=stage,
        num_stages=num_stages,
        host="quick",
        transport="command",
        code="installed",
        command=command,
    )
