"""Make the products by rounded weights an op of torch, so that a tape of ops can hold them."""

from __future__ import annotations

from typing import Any

import torch

from worker.model.lane_program import program
from worker.model.lane_text import BLOCK, GROUP, INT4, INT8, LANES
from worker.model.native_ops import Form, native_op

# No more rows are ever packed of different requests or positions, so which way a row goes depends
# on the op that brings it alone. From about here on the other one is faster anyway.
MOST_STEP_ROWS = 16
# What of a dequantized weight is there at a time: 1 MiB, half of a usual L2 cache.
_CACHED_ELEMENTS = 1 << 19
_FORMS: tuple[Form, ...] = ((0, "size", 0), (0, "size", 1))
_LIBRARY = torch.library.Library("stageline", "DEF")
_LIBRARY.define("rounded_linear(Tensor x, Tensor weight, Tensor scales, int outputs) -> Tensor")


def rounded_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, outputs: int
) -> torch.Tensor:
    """Return `[..., outputs]` for bfloat16 `[..., inputs]`.

    Few rows each get what they get alone; more are multiplied in bfloat16, by a block of weights
    at a time that stays in the processor's cache.

    Args:
        x: the rows.
        weight: see `lane_packing`.
        scales: float32 `[outputs]` filled up; empty where the weight is of 4 bits.
        outputs: how many there are in truth.
    """
    if x.dtype is not torch.bfloat16:
        raise TypeError(f"rounded weights take bfloat16, and this is {x.dtype}")
    inputs = weight.shape[1] * GROUP
    if x.shape[-1] != inputs or len(weight) * LANES != -(-outputs // BLOCK) * BLOCK:
        raise ValueError(
            f"rows of {x.shape[-1]} for {outputs} outputs do not fit weights of {inputs} inputs "
            f"and {len(weight) * LANES} outputs"
        )
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    code = program(INT8 if len(scales) else INT4)
    if len(rows) <= MOST_STEP_ROWS:
        out = code.step(rows, weight, scales, torch.get_num_threads())
    else:
        out = _many(rows, weight, scales)
    if out.shape[1] != outputs:
        out = out[:, :outputs].contiguous()
    return out.view(*x.shape[:-1], outputs)


def op_of_step() -> Any:
    """Return the op `(function, weight, scales, x, records, out, rows, threads)` for a few rows.

    The function is the program's `step_address`; `x` and `out` `[rows, inputs]` and
    `[rows, outputs]` are whole in memory, `records` has `records_bytes`.
    """
    return native_op(5, _FORMS, 2)


def _many(rows: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    code = program(INT8 if len(scales) else INT4)
    count, inputs = rows.shape
    outputs = len(weight) * LANES
    out = rows.new_empty(count, outputs)
    step = max(BLOCK, _CACHED_ELEMENTS // inputs // BLOCK * BLOCK)
    block = rows.new_empty(inputs, min(step, outputs))
    for start in range(0, outputs, step):
        part = block[:, : min(step, outputs - start)]
        code.weights(weight, part, start, torch.get_num_threads())
        torch.mm(rows, part, out=out[:, start : start + step])
    return out.mul_(scales) if len(scales) else out


_LIBRARY.impl("rounded_linear", rounded_linear, "CPU")
ROUNDED_LINEAR = torch.ops.stageline.rounded_linear.default
