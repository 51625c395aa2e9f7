"""Whether and how a model type can be split."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import torch

from worker.model.errors import UnsupportedModel


class Mode(StrEnum):
    """What a stage needs so that the split gives the bits of the whole."""

    PLAIN = "plain"
    TOKENS = "tokens"  # token ids reach every stage
    FLOAT32 = "float32"  # hidden states cross the wire as float32
    TOKENS_FLOAT32 = "tokens+float32"
    REFUSED = "refused"

    @property
    def needs_tokens(self) -> bool:
        """Whether token ids must travel to every stage."""
        return self in (Mode.TOKENS, Mode.TOKENS_FLOAT32)

    @property
    def wire_dtype(self) -> torch.dtype:
        """The dtype of hidden states on the wire."""
        exact = self in (Mode.FLOAT32, Mode.TOKENS_FLOAT32)
        return torch.float32 if exact else torch.bfloat16


@dataclass(frozen=True, slots=True)
class Support:
    """How a model type can be split. `reason` is set where it is refused."""

    model_type: str
    mode: Mode
    reason: str | None = None
    source: Literal["table", "probe", "option"] = "table"

    def check(self) -> None:
        """Raise UnsupportedModel, with the reason, where the type is refused."""
        if self.mode is Mode.REFUSED:
            raise UnsupportedModel(
                f"model type {self.model_type!r} cannot be split: {self.reason}; run it unsplit "
                "with transformers, or choose a model from docs/architectures.md"
            )
