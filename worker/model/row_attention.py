"""Attend rows one by one, with the call alone that the library's attention comes down to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from worker.model.interfaces import shares_heads

# Beside the scale, what has no say in the attention of a single position, whatever its value.
_IDLE = frozenset(("scaling", "is_causal", "sliding_window", "position_ids", "use_cache"))


def attend_without_masks(
    module: nn.Module,
    queries: Sequence[torch.Tensor],
    seen: Sequence[tuple[torch.Tensor, torch.Tensor]],
    unused: int,
    options: Mapping[str, Any],
) -> torch.Tensor | None:
    """Do what the library's `sdpa_attention_forward` does for each row, without its checks.

    Thirty layers of 16 rows would ask 480 times for what is the same each time.

    Args:
        module: the attention module.
        queries: of each row, `[1, heads, 1, dim]`; more than there are `seen`.
        seen: keys and values of each row, `[1, kv_heads, positions, dim]`.
        unused: rows to add that nobody reads.
        options: what the module passes beside these.

    Returns:
        `[1, rows, heads, dim]`; None where the library would go another way.
    """
    if any(_has_a_say(name, value) for name, value in options.items()):
        return None
    keys, values = seen[0]
    more: dict[str, Any] = {}
    if reads_shared_heads(module):
        if not shares_heads(keys, values):
            return None
        more["enable_gqa"] = True
    scale = options.get("scaling")
    outputs = [
        scaled_dot_product_attention(query, keys, values, scale=scale, **more)
        for query, (keys, values) in zip(queries, seen, strict=False)
    ]
    if unused:
        outputs.append(outputs[0].new_zeros(*outputs[0].shape[:2], unused, outputs[0].shape[3]))
    return torch.cat(outputs, 2).transpose(1, 2).contiguous()


def reads_shared_heads(module: nn.Module) -> bool:
    """Say whether several query heads read one key head."""
    return bool(getattr(module, "num_key_value_groups", 1) > 1)


def _has_a_say(name: str, value: Any) -> bool:
    """Say whether an option changes more than the scale."""
    return (
        name not in _IDLE and value is not None and (isinstance(value, torch.Tensor) or bool(value))
    )
