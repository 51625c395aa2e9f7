"""Attention of a prompt's later chunks: the library's kernel, without the library's copies.

Behind a prompt's first chunk `sdpa` attention gets a mask. For it the library writes every key head
out once for each query head that reads it, and torch makes numbers of the mask's yes and no, both
anew in every layer. torch's kernel for CPUs can share key heads, and all layers have one mask. 256
rows at 2,048 positions so take 0.72 of the time with 9 and 3 heads, and half with 32 and 4, to the
same bits (`python -m tools.bench.chunks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from worker.model.interfaces import sdpa_replaced

_Heads = tuple[int, int, int, torch.dtype]
# Those of full and of sliding layers; a model that makes one for each layer must not fill memory.
_MOST_MASKS = 2


class ChunkAttention:
    """Attends as the library does; what it is not sure of, it leaves to the library.

    The first time it meets heads of some number and size it does both, and compares every bit.

    Attributes:
        verdicts: by query heads, key heads, size and type, whether the bits were the same.
    """

    def __init__(self) -> None:
        self.verdicts: dict[_Heads, bool] = {}
        # What a mask adds to the scores, beside the mask, so that its id stays its own.
        self._added: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @contextmanager
    def used(self) -> Iterator[None]:
        """Have the model attend in this way in the block, which is one forward."""
        with sdpa_replaced(self._attend):
            try:
                yield
            finally:
                self._added.clear()

    def _attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **rest: Any,
    ) -> tuple[torch.Tensor, None]:
        def library() -> tuple[torch.Tensor, None]:
            attend: Callable[..., tuple[torch.Tensor, None]] = sdpa_attention_forward
            return attend(module, query, key, value, attention_mask, **rest)

        heads = (query.shape[1], key.shape[1], query.shape[-1], query.dtype)
        verdict = self.verdicts.get(heads)
        if verdict is False or not _is_known(module, query, key, value, attention_mask, rest):
            return library()
        assert attention_mask is not None
        found = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=self._numbers(attention_mask, query.dtype),
            scale=rest.get("scaling"),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        output = found.transpose(1, 2).contiguous()
        if verdict is None:
            right, _ = library()
            self.verdicts[heads] = torch.equal(right, output)
            return right, None
        return output, None

    def _numbers(self, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return what torch makes of a mask of yes and no, once for all layers."""
        known = self._added.get(id(mask))
        if known is None:
            if len(self._added) == _MOST_MASKS:
                del self._added[next(iter(self._added))]
            numbers = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, float("-inf"))
            known = self._added[id(mask)] = mask, numbers
        return known[1]


def _is_known(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    rest: dict[str, Any],
) -> bool:
    """Say whether the library would do the same, by copies."""
    groups = getattr(module, "num_key_value_groups", 1)
    return (
        mask is not None
        and mask.dtype == torch.bool
        and mask.dim() == 4
        and mask.shape[1] == 1
        and query.shape[2] > 1
        and query.shape[1] == key.shape[1] * groups
        and query.shape[-1] == key.shape[-1] == value.shape[-1]
        and query.dtype == key.dtype == value.dtype
        and query.device.type == "cpu"
        and not rest.get("dropout")
        and all(rest.get(name) is None for name in ("position_bias", "softcap"))
    )
