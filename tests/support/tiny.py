"""Tiny random checkpoints of any architecture, and plain transformers as the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tools.arch_engine import (
    Batch,
    load_stages,
    padded_prompts,
    reference_logits,
    reference_model,
    same,
    single_prompt,
    split_logits,
    through_bytes,
    write_checkpoint,
)
from tools.tiny_configs import recipe_config
from worker.model.load_options import LoadOptions
from worker.model.run import StageRunner
from worker.protocol.stage import StageSlice, split_layers

__all__ = [
    "Batch",
    "load_stages",
    "padded_prompts",
    "reference_logits",
    "reference_model",
    "same",
    "single_prompt",
    "split_logits",
    "split_runners",
    "through_bytes",
    "tiny_checkpoint",
    "write_checkpoint",
]


def tiny_checkpoint(
    folder: Path, model_type: str, *, sharded: bool = False, **overrides: Any
) -> Path:
    """Write a tiny random bfloat16 model of `model_type` into `folder`, and return it.

    Six layers of width 64, vocabulary 160, context 256, sliding window 8 where there is one.
    """
    write_checkpoint(recipe_config(model_type, **overrides), folder, sharded=sharded)
    return folder


def split_runners(
    folder: Path, num_layers: int, num_stages: int, options: LoadOptions | None = None
) -> list[StageRunner]:
    """Load the model in `folder` as evenly cut stages."""
    slices: list[StageSlice] = split_layers(num_layers, num_stages)
    bounds = [0, *(piece.shard_end for piece in slices)]
    return load_stages(folder, bounds, options or LoadOptions())


def token_ids(*ids: int) -> torch.Tensor:
    """Token ids as a batch of one, `[1, seq]`."""
    return torch.tensor([ids])
