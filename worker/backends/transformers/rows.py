"""What flows between the primitives of the backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, slots=True)
class Rows:
    """One message's rows on their way through the stage.

    Attributes:
        values: ids `[batch, seq]`, hidden states `[batch, seq, width]`, logits `[batch, vocab]`.
        kind: which of the three.
        tokens: the ids of hidden states that came in, where the model needs them.
    """

    values: torch.Tensor
    kind: Literal["ids", "hidden", "logits"]
    tokens: torch.Tensor | None = None
