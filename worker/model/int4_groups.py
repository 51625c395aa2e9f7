"""Round weights to 4 bits in groups."""

from __future__ import annotations

import torch

from worker.model.lane_packing import empty_tiles, fill_scales, fill_tiles
from worker.model.lane_text import BLOCK, GROUP, INT4, LANES
from worker.model.packing import PIECE_ELEMENTS

_LEVELS, _MIDDLE = 16, INT4.middle


def pack_int4(matrix: torch.Tensor) -> torch.Tensor:
    """Quantize `[rows, columns]` for `LaneProgram`, rows filled up to a multiple of 64.

    Rows are independent, so pieces give the bits of the whole.
    """
    rows, columns = matrix.shape
    padded = -(-rows // BLOCK) * BLOCK
    tiles = empty_tiles(INT4, padded, columns)
    step = max(1, PIECE_ELEMENTS // columns // BLOCK) * BLOCK
    for start in range(0, padded, step):
        levels, by_group = _rounded(filled_up(matrix[start : start + step]))
        into = tiles[start // LANES : (start + len(levels)) // LANES]
        fill_tiles(INT4, into, levels)
        fill_scales(into, *by_group.unbind(-1))
    return tiles


def filled_up(matrix: torch.Tensor) -> torch.Tensor:
    """Return `matrix` with rows of zeros below it, up to a whole block."""
    return torch.nn.functional.pad(matrix, (0, 0, 0, -len(matrix) % BLOCK))


def pack_nibbles(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize `[rows, columns]` to be dequantized whole: the same numbers in a plain order.

    Returns uint8 `[rows, columns / 2]`, the second half of the columns in the high bits, and
    bfloat16 `[rows, columns / 32, 2]`.
    """
    rows, columns = matrix.shape
    packed = torch.empty(rows, columns // 2, dtype=torch.uint8)
    scales = torch.empty(rows, columns // GROUP, 2, dtype=torch.bfloat16)
    step = max(1, PIECE_ELEMENTS // columns)
    for start in range(0, rows, step):
        levels, by_row = _rounded(matrix[start : start + step])
        low, high = levels.chunk(2, 1)
        packed[start : start + step] = low | (high << 4)
        scales[start : start + step] = by_row
    return packed, scales


def unpack_nibbles(
    packed: torch.Tensor, scales: torch.Tensor, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """Return the matrix of `shape` and `dtype` that `pack_nibbles` packed, as rounded."""
    levels = torch.cat([packed & (_LEVELS - 1), packed >> 4], 1).to(torch.int8) - _MIDDLE
    scale, middle = (part.unsqueeze(-1).contiguous() for part in scales.unbind(-1))
    values = levels.to(scales.dtype).view(*scales.shape[:2], GROUP)
    return torch.addcmul(middle, values, scale).reshape(shape).to(dtype)


def _rounded(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return levels, uint8 `[rows, columns]`, and bfloat16 `[rows, columns / 32, 2]`.

    The levels of a group reach from its smallest to its largest weight.
    """
    rows, columns = matrix.shape
    groups = matrix.to(torch.float32, copy=True).view(rows, columns // GROUP, GROUP)
    # `aminmax` of short rows takes five times as long
    least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    # weights that are all equal need no scale, but must not be divided by nothing
    tiny = torch.finfo(torch.bfloat16).tiny
    scale = ((most - least) / (_LEVELS - 1)).clamp(min=tiny).to(torch.bfloat16)
    middle = (least + _MIDDLE * scale.float()).to(torch.bfloat16)
    groups.sub_(middle.float()).div_(scale.float()).round_().add_(_MIDDLE)
    levels = groups.clamp_(0, _LEVELS - 1).to(torch.uint8).view(rows, columns)
    return levels, torch.cat([scale, middle], -1)
