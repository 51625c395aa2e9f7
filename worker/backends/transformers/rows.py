"""What flows between the primitives of the backend."""

from __future__ import annotations

from collections.abc import Sequence
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

    @property
    def count(self) -> int:
        """Columns: positions of each sequence."""
        return int(self.values.shape[1])

    def columns(self, start: int, end: int) -> Rows:
        """Return the columns `start:end` of ids or hidden states."""
        tokens = None if self.tokens is None else self.tokens[:, start:end]
        return Rows(self.values[:, start:end], self.kind, tokens)

    @staticmethod
    def joined(pieces: Sequence[Rows]) -> Rows:
        """Put hidden states side by side."""
        return Rows(torch.cat([piece.values for piece in pieces], 1), pieces[0].kind)
