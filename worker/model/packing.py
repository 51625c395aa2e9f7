"""Quantize one tensor with bitsandbytes, piece by piece, so that temporaries stay small."""

from __future__ import annotations

import torch

NF4_BLOCK = 64
# bitsandbytes' nf4 quantizer makes temporaries of some 20 bytes an element: 5 MiB a piece
PIECE_ELEMENTS = 1 << 18


def pack_nf4(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize to nf4: uint8 `[elements / 2, 1]` and float32 scales `[elements / 64]`.

    Blocks of 64 elements are independent, so the pieces give the bits of the whole.
    """
    from bitsandbytes.functional import quantize_4bit

    flat = tensor.reshape(-1)
    packed = torch.empty(flat.numel() // 2, 1, dtype=torch.uint8, device=flat.device)
    scales = torch.empty(flat.numel() // NF4_BLOCK, dtype=torch.float32, device=flat.device)
    for start in range(0, flat.numel(), PIECE_ELEMENTS):
        piece = flat[start : start + PIECE_ELEMENTS].contiguous()
        quantized, state = quantize_4bit(piece, blocksize=NF4_BLOCK, quant_type="nf4")
        packed[start // 2 : start // 2 + quantized.shape[0]] = quantized
        scales[start // NF4_BLOCK :][: state.absmax.numel()] = state.absmax
    return packed, scales


def pack_int8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize `[rows, columns]` to int8, with one float32 scale for each row.

    Rows are independent, so the pieces give the bits of the whole.
    """
    from bitsandbytes.functional import int8_vectorwise_quant

    rows, columns = matrix.shape
    packed = torch.empty(rows, columns, dtype=torch.int8, device=matrix.device)
    scales = torch.empty(rows, dtype=torch.float32, device=matrix.device)
    step = max(1, PIECE_ELEMENTS // columns)
    for start in range(0, rows, step):
        piece = matrix[start : start + step].contiguous().to(torch.float16)
        packed[start : start + step], scales[start : start + step], _ = int8_vectorwise_quant(piece)
    return packed, scales


def unpack_nf4(
    packed: torch.Tensor, scales: torch.Tensor, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """Return the tensor of `shape` and `dtype` that `pack_nf4` packed, as rounded."""
    from bitsandbytes.functional import QuantState, dequantize_4bit

    state = QuantState(
        absmax=scales, shape=shape, dtype=dtype, blocksize=NF4_BLOCK, quant_type="nf4"
    )
    return dequantize_4bit(packed, state)


def unpack_int8(
    packed: torch.Tensor, scales: torch.Tensor, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """Return the matrix of `shape` and `dtype` that `pack_int8` packed, as rounded."""
    from bitsandbytes.functional import int8_vectorwise_dequant

    rows, columns = shape
    out = torch.empty(shape, dtype=dtype, device=packed.device)
    step = max(1, PIECE_ELEMENTS // columns)
    for start in range(0, rows, step):
        piece = slice(start, start + step)
        out[piece] = int8_vectorwise_dequant(packed[piece], scales[piece])
    return out
