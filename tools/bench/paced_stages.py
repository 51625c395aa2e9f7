"""A pipeline of stages that take as long as they are told to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.specs import StageSpec
from tools.bench.scripted_stage import scripted_spec
from worker.protocol.capabilities import Capability

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
        scripted_spec(
            PROGRAM,
            (json.dumps(asdict(pace)), str(hidden_chars)),
            stage=stage,
            num_stages=num_stages,
            hidden_chars=hidden_chars,
            capabilities=capabilities,
            max_rows=max_rows,
        )
        for stage in range(num_stages)
    ]
