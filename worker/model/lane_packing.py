"""Bring rounded weights into the order in which the products read them; see `lane_text`."""

from __future__ import annotations

import torch

from worker.model.lane_text import GROUP, LANES, VECTOR_BYTES, Form
from worker.model.pages import empty_tensor

_WORDS = VECTOR_BYTES // 4


def empty_tiles(form: Form, outputs: int, inputs: int) -> torch.Tensor:
    """Return room for weights, uint8 `[outputs / 16, inputs / 32, bytes]`."""
    return empty_tensor((outputs // LANES, inputs // GROUP, form.group_bytes), torch.uint8)


def fill_tiles(form: Form, tiles: torch.Tensor, levels: torch.Tensor) -> None:
    """Put levels, uint8 `[outputs, inputs]`, where they belong in `tiles`."""
    count, groups = tiles.shape[:2]
    # four inputs at a time: a level has room in its byte
    words = levels.contiguous().view(torch.int32)
    if form.bits == 4:
        nearer, farther = words.view(count, LANES, groups, -1, 2).unbind(-1)
        words = nearer | (farther << 4)
    words = words.view(count, LANES, groups, -1)
    into = tiles.view(torch.int32).view(count, groups, -1, _WORDS)
    into[:, :, form.has_scales :] = words.permute(0, 2, 3, 1)


def fill_scales(tiles: torch.Tensor, scales: torch.Tensor, middles: torch.Tensor) -> None:
    """Put bfloat16 scales and middles, `[outputs, groups]`, before the levels of `tiles`."""
    count, groups = tiles.shape[:2]
    words = torch.stack([middles, scales], -1).view(torch.int32).view(count, LANES, groups)
    tiles.view(torch.int32)[:, :, :_WORDS] = words.transpose(1, 2)
