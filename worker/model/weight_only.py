"""Linear layers whose weights alone are rounded to 8 or 4 bits, on torch's own CPU kernels.

Few rows at a time, as in decoding, go through a kernel that reads the packed weights at memory
speed and gives each row what it gives that row alone. It is slow for many rows: those of a
prefill chunk are multiplied in bfloat16, by a block of dequantized weights at a time that stays
in the processor's cache.
"""

from __future__ import annotations

import torch
from torch import nn

from worker.model.int4_groups import BLOCK_ROWS, GROUP, NibbleOrder, pack_int4, pack_levels

# No more rows are ever packed of different requests or positions, so which kernel works on a row
# depends on the op that brings it alone. From about here on the other one is faster anyway.
MOST_STEP_ROWS = 16
# What of a dequantized weight is there at a time: 1 MiB, half of a usual L2 cache.
_CACHED_ELEMENTS = 1 << 19
# Of the places where a level is kept, the high four bits: 16 levels below and above zero.
_HIGH_BITS, _SIGN_BIT, _BELOW = 0xF0, 0x80, 1 / 16


class WeightOnlyLinear(nn.Module):
    """Stands where a linear layer stood; `weight` and `scales` are packed, the rest as there.

    Attributes:
        most_level: levels reach from minus this to this at least.
        exact_rows: up to how many rows of a call each get what they get alone (`RowModules`).
    """

    most_level: int
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
        self.exact_rows = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the linear map to the last dimension of `x`, bfloat16."""
        rows = x.reshape(-1, self.in_features).contiguous()
        if len(rows) > MOST_STEP_ROWS:
            out = self._many(rows)
        elif len(rows) <= self.exact_rows:
            out = self._few(rows)
        else:
            out = torch.cat([self._few(row) for row in rows.split(1)])
        if out.shape[1] != self.out_features:
            out = out[:, : self.out_features].contiguous()
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], self.out_features)

    def quantize(self, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `weight` and `scales` are to be for a matrix `[rows, columns]`."""
        raise NotImplementedError

    def of_levels(self, levels: torch.Tensor) -> WeightOnlyLinear:
        """Return a layer of this kind whose weights are the whole numbers `[rows, columns]`."""
        raise NotImplementedError

    def hold(self, packed: torch.Tensor, scales: torch.Tensor) -> None:
        """Take what `quantize` gave."""
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.register_buffer("scales", scales, persistent=False)

    def _few(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply by the kernel, each row as if it were alone."""
        raise NotImplementedError

    def _many(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply in bfloat16."""
        raise NotImplementedError


class Int8Linear(WeightOnlyLinear):
    """8 bits a weight, one scale for each output."""

    most_level = 127

    def quantize(self, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Round to int8 `[rows, columns]`, with bfloat16 scales `[rows]`."""
        return pack_int8_rows(matrix)

    def of_levels(self, levels: torch.Tensor) -> Int8Linear:
        """Return such a layer with scales of one."""
        made = Int8Linear(len(levels), levels.shape[1], None)
        made.hold(levels.to(torch.int8), torch.ones(len(levels), dtype=torch.bfloat16))
        return made

    def _few(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.weight, self.scales)
        return out

    def _many(self, rows: torch.Tensor) -> torch.Tensor:
        out = rows.new_empty(len(rows), self.out_features)
        step = max(BLOCK_ROWS, _CACHED_ELEMENTS // self.in_features // BLOCK_ROWS * BLOCK_ROWS)
        for start in range(0, self.out_features, step):
            block = self.weight[start : start + step].to(torch.bfloat16)
            torch.mm(rows, block.t(), out=out[:, start : start + step])
        return out.mul_(self.scales)


class Int4Linear(WeightOnlyLinear):
    """4 bits a weight, a scale and a zero point for 32 inputs of each output."""

    most_level = 7

    def __init__(
        self, rows: int, columns: int, bias: nn.Parameter | None, order: NibbleOrder | None
    ) -> None:
        super().__init__(rows, columns, bias)
        self._order = order

    def quantize(self, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Round to 4 bits; see `pack_int4`."""
        return pack_int4(matrix)

    def of_levels(self, levels: torch.Tensor) -> Int4Linear:
        """Return such a layer with scales of one."""
        made = Int4Linear(len(levels), levels.shape[1], None, self._order)
        made.hold(*pack_levels(levels))
        return made

    def _few(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows, self.weight, GROUP, self.scales
        )
        return out

    def _many(self, rows: torch.Tensor) -> torch.Tensor:
        if self._order is None:
            return self._few(rows)
        out = rows.new_empty(len(rows), len(self.weight))
        size, places = self._order.rows, self._order.outputs
        blocks = self.weight.view(-1, self.in_features, size // 2)
        step = max(1, _CACHED_ELEMENTS // self.in_features // size)
        for start in range(0, len(blocks), step):
            count = min(step, len(blocks) - start)
            columns = slice(start * size, (start + count) * size)
            scales = self.scales[:, columns].view(len(self.scales), 1, count, size, 2)
            if places is not None:
                scales = scales[..., places, :]
            scale, middle = (part.contiguous() for part in scales.unbind(-1))
            weights = _halves(blocks[start : start + count])
            groups = weights.view(-1, GROUP, count, size)
            torch.addcmul(middle, groups, scale.mul_(_BELOW), out=groups)
            product = torch.mm(rows, weights.view(self.in_features, -1))
            if places is None:
                out[:, columns] = product
            else:
                out[:, columns].view(-1, count, size)[..., places] = product.view(-1, count, size)
        return out


def _halves(blocks: torch.Tensor) -> torch.Tensor:
    """Take levels `[blocks, inputs, n]` apart: 16 times their distance from the middle one.

    They are the high bits of signed bytes. Returns bfloat16 `[inputs, blocks, 2, n]`.
    """
    count, inputs, half = blocks.shape
    values = torch.empty(inputs, count, 2, half, dtype=torch.bfloat16)
    for i, levels in enumerate((blocks << 4, blocks & _HIGH_BITS)):
        values[:, :, i] = levels.bitwise_xor_(_SIGN_BIT).view(torch.int8).transpose(0, 1)
    return values


def pack_int8_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round `[rows, columns]` to int8, with one bfloat16 scale for each row."""
    rows, columns = matrix.shape
    packed = torch.empty(rows, columns, dtype=torch.int8)
    scales = torch.empty(rows, dtype=torch.bfloat16)
    step = max(1, _CACHED_ELEMENTS // columns)
    for start in range(0, rows, step):
        piece = matrix[start : start + step].to(torch.float32)
        most = piece.abs().amax(1).clamp(min=torch.finfo(torch.bfloat16).tiny)
        scale = (most / 127).to(torch.bfloat16)
        scales[start : start + step] = scale
        levels = (piece / scale.float()[:, None]).round_().clamp_(-127, 127)
        packed[start : start + step] = levels
    return packed, scales


def unpack_int8_rows(
    packed: torch.Tensor, scales: torch.Tensor, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """Return the matrix of `shape` and `dtype` that `pack_int8_rows` packed, as rounded."""
    return (packed.to(scales.dtype) * scales[:, None]).reshape(shape).to(dtype)
