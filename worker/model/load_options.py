"""How a stage is to be loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from worker.model.support import Mode

Quantization = Literal["bfloat16", "int8", "nf4", "int8-weight", "int4-weight"]
Engine = Literal["fast", "stock", "graphs"]


@dataclass(frozen=True)
class LoadOptions:
    """How to load. `mode` None means: as the model type needs (see `support_for`)."""

    quantization: Quantization = "bfloat16"
    device: str = "cpu"
    mmap: bool = True
    trust_remote_code: bool = False
    mode: Mode | None = None
    attention: str | None = None
    engine: Engine = "fast"
