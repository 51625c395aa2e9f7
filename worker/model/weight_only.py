"""Linear layers whose weights alone are rounded to 8 or 4 bits, on CPUs."""

from __future__ import annotations

import torch
from torch import nn

from worker.model.int4_groups import filled_up, pack_int4
from worker.model.lane_op import MOST_STEP_ROWS
from worker.model.lane_packing import empty_tiles, fill_tiles
from worker.model.lane_text import BLOCK, INT8, LANES
from worker.model.packing import PIECE_ELEMENTS

_MOST = 127


class WeightOnlyLinear(nn.Module):
    """Stands where a linear layer stood; `weight` and `scales` are packed, the rest as there.

    Attributes:
        exact_rows: up to how many rows of a call each get what they get alone (`RowModules`).
    """

    exact_rows = MOST_STEP_ROWS
    weight: nn.Parameter
    scales: torch.Tensor
    bias: nn.Parameter | None

    def __init__(self, rows: int, columns: int, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.in_features, self.out_features = columns, rows
        # what the loader reads into, before it is packed
        empty = torch.empty(rows, columns, dtype=torch.bfloat16, device="meta")
        self.weight = nn.Parameter(empty, requires_grad=False)
        self.register_parameter("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the linear map to the last dimension of `x`, bfloat16."""
        out: torch.Tensor = torch.ops.stageline.rounded_linear(
            x, self.weight, self.scales, self.out_features
        )
        return out if self.bias is None else out + self.bias

    def quantize(self, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `weight` and `scales` are to be for a matrix `[rows, columns]`."""
        raise NotImplementedError

    def hold(self, packed: torch.Tensor, scales: torch.Tensor) -> None:
        """Take what `quantize` gave."""
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.register_buffer("scales", scales, persistent=False)


class Int8Linear(WeightOnlyLinear):
    """8 bits a weight, one scale for each output."""

    def quantize(self, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Round to 8 bits, with float32 scales that bfloat16 holds."""
        rows, columns = matrix.shape
        padded = -(-rows // BLOCK) * BLOCK
        tiles, scales = empty_tiles(INT8, padded, columns), torch.empty(padded)
        step = max(1, PIECE_ELEMENTS // columns // BLOCK) * BLOCK
        for start in range(0, padded, step):
            levels, scale = pack_int8_rows(filled_up(matrix[start : start + step]))
            into = tiles[start // LANES : (start + len(levels)) // LANES]
            fill_tiles(INT8, into, levels.view(torch.uint8) + INT8.middle)
            scales[start : start + step] = scale
        return tiles, scales


class Int4Linear(WeightOnlyLinear):
    """4 bits a weight, a scale and a zero point for 32 inputs of each output."""

    def quantize(self, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Round to 4 bits; see `pack_int4`."""
        return pack_int4(matrix), torch.empty(0)


def pack_int8_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round `[rows, columns]` to int8, with one bfloat16 scale for each row."""
    rows, columns = matrix.shape
    packed = torch.empty(rows, columns, dtype=torch.int8)
    scales = torch.empty(rows, dtype=torch.bfloat16)
    step = max(1, PIECE_ELEMENTS // columns)
    for start in range(0, rows, step):
        piece = matrix[start : start + step].to(torch.float32)
        most = piece.abs().amax(1).clamp(min=torch.finfo(torch.bfloat16).tiny)
        scale = (most / _MOST).to(torch.bfloat16)
        scales[start : start + step] = scale
        levels = (piece / scale.float()[:, None]).round_().clamp_(-_MOST, _MOST)
        packed[start : start + step] = levels
    return packed, scales


def unpack_int8_rows(
    packed: torch.Tensor, scales: torch.Tensor, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """Return the matrix of `shape` and `dtype` that `pack_int8_rows` packed, as rounded."""
    return (packed.to(scales.dtype) * scales[:, None]).reshape(shape).to(dtype)
