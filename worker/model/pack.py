"""Rows of several requests side by side: what a pack is made of, and how packs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from worker.model.kv import StageCache
from worker.model.pack_cache import Member

Want = Literal["hidden", "row_logits"]


@dataclass(frozen=True, eq=False)
class Piece:
    """Successive positions of one request: `x` and `tokens` as `StageRunner.forward` takes them."""

    cache: StageCache
    x: torch.Tensor
    tokens: torch.Tensor | None = None

    @property
    def count(self) -> int:
        """Rows."""
        return int(self.x.shape[1])


@dataclass(frozen=True)
class PackKind:
    """What decides the ops of a pack: rows, whether of several requests, and what comes out."""

    size: int
    is_mixed: bool
    want: Want | Literal["head"]


@dataclass(frozen=True)
class Verdict:
    """How packs of one kind must be run.

    Attributes:
        is_exact: whether they may be run at all.
        uneven: modules that must take row by row.
        is_watched: whether every op must be looked at, because some go row by row.
    """

    is_exact: bool
    uneven: tuple[nn.Module, ...] = ()
    is_watched: bool = False


@dataclass(frozen=True, eq=False)
class Pack:
    """Pieces side by side, filled up to the size of their pack."""

    members: list[Member]
    x: torch.Tensor
    positions: torch.Tensor | None
    tokens: torch.Tensor | None
    want: str

    @staticmethod
    def of(pieces: Sequence[Piece], kind: PackKind, *, takes_positions: bool) -> Pack:
        """Put pieces side by side, at the positions where their caches stand."""
        members = [Member(piece.cache, piece.cache.seen, piece.count) for piece in pieces]
        tokens = [piece.tokens for piece in pieces if piece.tokens is not None]
        return Pack(
            members,
            filled([piece.x for piece in pieces], kind.size),
            _positions(members, kind.size) if takes_positions else None,
            filled(tokens, kind.size) if tokens else None,
            kind.want,
        )

    @property
    def inputs(self) -> list[torch.Tensor]:
        """What changes from pack to pack, beside the caches."""
        return [t for t in (self.x, self.positions, self.tokens) if t is not None]

    def shares(self, outputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return each piece's own."""
        counts = [member.count for member in self.members]
        dim = int(self.want == "hidden")
        rest = outputs.shape[dim] - sum(counts)
        parts: tuple[torch.Tensor, ...] = outputs.split([*counts, rest], dim)
        return parts[: len(counts)]


def filled(rows: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """Put rows side by side, and the last one again until there are `size`."""
    unused = size - sum(piece.shape[1] for piece in rows)
    return torch.cat([*rows, *[rows[-1][:, -1:]] * unused], 1)


def _positions(members: Sequence[Member], size: int) -> torch.Tensor:
    found = [member.start + i for member in members for i in range(member.count)]
    return torch.tensor([[*found, *[found[-1]] * (size - len(found))]])


def newest(piece: Piece) -> list[torch.Tensor]:
    """Return the keys and values that a piece has written, of layers that have such."""
    layers: list[Any] = [piece.cache.layers[i] for i in piece.cache.own_layers]
    states = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    return [state[..., -piece.count :, :] for state in states if state is not None]


def restore(pieces: Sequence[Piece], snapshots: Sequence[Any]) -> None:
    """Bring each cache back to its snapshot."""
    for piece, snapshot in zip(pieces, snapshots, strict=True):
        piece.cache.restore(snapshot)


def same_bits(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Compare bit by bit, also what is not a number."""
    return len(left) == len(right) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))
        for a, b in zip(left, right, strict=True)
    )


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)
