"""Round weights to 4 bits in groups, and keep them as torch's CPU kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from worker.model.packing import PIECE_ELEMENTS

# A scale and a zero point for 32 inputs: 5 bits a weight. Groups of 64 take 4.5, but on SmolLM2
# the divergence from bfloat16 was half as large again (docs/quantization.md).
GROUP = 32
# Blocks of outputs that the kernel works on; fewer are filled up with zeros.
BLOCK_ROWS = 64
_LEVELS, _MIDDLE = 16, 8


def pack_int4(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize `[rows, columns]` for the kernel, rows filled up to a multiple of 64.

    Returns uint8 `[rows, columns / 2]` in the order of this CPU's kernel, and bfloat16
    `[columns / 32, rows, 2]`: for each group a scale and the weight that level 8 stands for.
    Blocks of rows are independent, so pieces give the bits of the whole.
    """
    rows, columns = matrix.shape
    padded = -(-rows // BLOCK_ROWS) * BLOCK_ROWS
    packed = torch.empty(padded, columns // 2, dtype=torch.uint8)
    scales = torch.empty(columns // GROUP, padded, 2, dtype=torch.bfloat16)
    step = max(1, PIECE_ELEMENTS // columns // BLOCK_ROWS) * BLOCK_ROWS
    for start in range(0, padded, step):
        piece = _filled_up(matrix[start : start + step])
        levels, by_row = _rounded(piece)
        into = slice(start, start + len(piece))
        packed[into] = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
        scales[:, into] = by_row.transpose(0, 1)
    return packed, scales


def pack_levels(levels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack the whole numbers -8 to 7 as `pack_int4` packs weights, with scales of one."""
    filled = _filled_up(levels + _MIDDLE).to(torch.int32)
    scales = torch.zeros(levels.shape[1] // GROUP, len(filled), 2, dtype=torch.bfloat16)
    scales[..., 0] = 1
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(filled, 1), scales


def _filled_up(matrix: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(matrix, (0, 0, 0, -len(matrix) % BLOCK_ROWS))


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
        low, high = levels.to(torch.uint8).chunk(2, 1)
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
    """Return levels, int32 `[rows, columns]`, and bfloat16 `[rows, columns / 32, 2]`.

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
    levels = groups.clamp_(0, _LEVELS - 1).to(torch.int32).view(rows, columns)
    return levels, torch.cat([scale, middle], -1)


@dataclass(frozen=True, eq=False)
class NibbleOrder:
    """Where this CPU's kernel keeps which weight: it packs blocks of outputs, input by input.

    Attributes:
        rows: outputs in a block.
        outputs: which output each place of a block is of, low bits first; None: in order.
    """

    rows: int
    outputs: torch.Tensor | None

    @staticmethod
    def of_this_cpu() -> NibbleOrder | None:
        """Pack outputs that are told apart by their levels; None: in no order known here."""
        numbers = torch.arange(BLOCK_ROWS, dtype=torch.int32)
        seen = [
            torch.ops.aten._convert_weight_to_int4pack_for_cpu(
                digits[:, None].repeat(1, GROUP), 1
            ).view(-1)
            for digits in (numbers % 16, numbers // 16)
        ]
        for rows in (BLOCK_ROWS, BLOCK_ROWS // 2):
            low, high = (
                planes(digits.view(BLOCK_ROWS // rows, GROUP, rows // 2)) for digits in seen
            )
            found = (low + 16 * high).flatten(2)
            outputs = found[0, 0].long()
            first = rows * torch.arange(BLOCK_ROWS // rows)[:, None, None]
            if torch.equal(found.long(), (outputs + first).expand(-1, GROUP, -1)):
                in_order = torch.equal(outputs, torch.arange(rows))
                return NibbleOrder(rows, None if in_order else outputs)
        return None


def planes(packed: torch.Tensor) -> torch.Tensor:
    """Take bytes `[..., n]` apart: levels `[..., 2, n]`, those of the low bits first."""
    return torch.stack([packed & (_LEVELS - 1), packed >> 4], -2)
