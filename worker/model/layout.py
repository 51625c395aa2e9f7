"""How a model lays out the hidden state between its layers, and how that crosses the wire."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from worker.model.parts import ModelParts

# sizes that no other dimension of a real model has
_DRY_BATCH, _DRY_SEQ = 5, 7


@dataclass(frozen=True, slots=True)
class HiddenLayout:
    """Where batch and sequence lie among the dimensions, and the sizes of the others.

    Most models carry `[batch, seq, hidden_size]`: axes 0 and 1, `others` (hidden_size,). Some
    carry several streams, as `[batch, seq, streams, hidden]` or `[streams, batch, seq, hidden]`.
    On the wire it is `[batch, seq, width]` always.
    """

    batch_axis: int
    seq_axis: int
    others: tuple[int, ...]

    @property
    def width(self) -> int:
        """Elements for each position: the last dimension on the wire."""
        return math.prod(self.others)

    def to_wire(self, hidden: torch.Tensor) -> torch.Tensor:
        """Turn the model's layout into `[batch, seq, width]`, contiguous."""
        moved = hidden.movedim((self.batch_axis, self.seq_axis), (0, 1))
        return moved.reshape(*moved.shape[:2], self.width).contiguous()

    def from_wire(self, hidden: torch.Tensor) -> torch.Tensor:
        """Turn `[batch, seq, width]` into the model's layout, contiguous."""
        spread = hidden.reshape(*hidden.shape[:2], *self.others)
        return spread.movedim((0, 1), (self.batch_axis, self.seq_axis)).contiguous()


class _Caught(Exception):
    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape


def hidden_layout(model: PreTrainedModel, parts: ModelParts) -> HiddenLayout:
    """Find the layout by passing token ids through whole meta model `model` up to its layers.

    Nothing is computed on the meta device. A model that cannot be run there is taken to carry
    `[batch, seq, hidden_size]`.
    """
    first: nn.Module = next(iter(model.get_submodule(parts.layers).children()))

    def catch(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise _Caught((args[0] if args else kwargs["hidden_states"]).shape)

    handle = first.register_forward_pre_hook(catch, with_kwargs=True)
    device = next(model.parameters()).device
    ids = torch.zeros(_DRY_BATCH, _DRY_SEQ, dtype=torch.long, device=device)
    try:
        with torch.inference_mode():
            # with a cache: without, masks are searched for packed sequences, which needs values
            model(input_ids=ids, cache=DynamicCache(config=model.config), use_cache=True)
    except _Caught as caught:
        return _layout_of(tuple(caught.shape))
    except Exception:  # noqa: BLE001 - any op may lack a meta kernel
        pass
    finally:
        handle.remove()
    size = model.config.get_text_config(decoder=True).hidden_size
    return HiddenLayout(0, 1, (int(size),))


def _layout_of(shape: tuple[int, ...]) -> HiddenLayout:
    batch = shape.index(_DRY_BATCH)
    seq = shape.index(_DRY_SEQ)
    others = tuple(n for axis, n in enumerate(shape) if axis not in (batch, seq))
    return HiddenLayout(batch, seq, others)
