"""Build a model on the meta device without drawing the numbers that no tensor there holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_FILLS = frozenset(
    (
        nn.init.kaiming_uniform_,
        nn.init.normal_,
        nn.init.uniform_,
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
    )
)


class Unfilled(TorchFunctionMode):
    """Leaves tensors on the meta device as they are where they would be filled at random.

    Torch does that by way of its reference implementations, for which it imports sympy: 0.4 s.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do nothing or what `func` does."""
        named = kwargs or {}
        if func in _FILLS:
            filled = args[0] if args else named["tensor"]
            if isinstance(filled, torch.Tensor) and filled.is_meta:
                return filled
        return func(*args, **named)
