"""A pipeline of stages that cost next to nothing, so that what is left is the orchestrator."""

from __future__ import annotations

from pathlib import Path

from orchestrator.specs import StageSpec
from tools.bench.scripted_stage import scripted_spec
from worker.protocol.codec import encode_event
from worker.protocol.events import Envelope, Op

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
    return [
        scripted_spec(
            PROGRAM,
            (str(hidden_chars), _event(stage) if tells else ""),
            stage=stage,
            num_stages=num_stages,
            hidden_chars=hidden_chars,
        )
        for stage in range(num_stages)
    ]


def _event(stage: int) -> str:
    """Return what is told of each op, with OP for the op and RID for the request."""
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
    return encode_event(event, envelope).decode().strip()
