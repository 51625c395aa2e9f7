"""What a way around the model's Python looks like to the runner."""

from __future__ import annotations

from typing import Protocol

import torch

from worker.model.kv import StageCache


class ShortStep(Protocol):
    """Does decode steps of one kind as the model's own forward would, to the bit."""

    def fits(self, x: torch.Tensor, cache: object, want: str) -> bool:
        """Say whether a forward is a step of this kind."""

    def run(self, x: torch.Tensor, cache: StageCache, tokens: torch.Tensor | None) -> torch.Tensor:
        """Do what `StageRunner.forward` does with these; on an exception the cache is as it was."""
