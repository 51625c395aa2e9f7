"""Products of weights and the many rows of a prompt by code of our own, with torch's bits."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch

from worker.model.wide_program import WideProgram, can_be_wide, wide_program
from worker.model.wide_tiles import TILE_INPUTS, TILE_ROWS
from worker.model.wide_trial import torchs_piece

# Fewer rows have another order in oneDNN, and products of their own; of more, oneDNN is as fast.
LEAST_ROWS, MOST_ROWS = 33, 256


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the order of torch's sums depends on in a process."""

    rows: int
    outputs: int
    inputs: int
    threads: int


class WideProducts:
    """Products whose order of sums is found out when a number of rows is first met.

    For each shape of weights that takes as long as the product a few times. It is not remembered:
    oneDNN goes by the sizes of caches too, which another machine of this kind may tell otherwise.
    """

    def __init__(self) -> None:
        self._pieces: dict[_Shape, int | None] = {}

    def multiply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
        """Return what `linear(x, weight)` does, bit for bit; None where that is to do it.

        Of two NaN whose sum is taken either may be the result's, as in torch.

        Args:
            x: bfloat16 `[rows, inputs]` on a CPU, contiguous.
            weight: bfloat16 `[outputs, inputs]` on a CPU, contiguous.
        """
        program = wide_program(torch.get_num_threads()) if _fits(x, weight) else None
        if program is None:
            return None
        outputs, inputs = weight.shape
        shape = _Shape(len(x), outputs, inputs, program.threads)
        if shape not in self._pieces:
            self._pieces[shape] = _piece_of(program, shape)
        piece = self._pieces[shape]
        return None if piece is None else program.multiply(x, weight, piece)


def _piece_of(program: WideProgram, shape: _Shape) -> int | None:
    # no memory for a trial: torch does it, as long as the process lives
    with suppress(OSError, MemoryError, RuntimeError):
        return torchs_piece(program, shape.rows, shape.outputs, shape.inputs)
    return None


def _fits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    given = (x, weight)
    return (
        can_be_wide()
        and all(t.dtype is torch.bfloat16 and t.device.type == "cpu" for t in given)
        and x.dim() == weight.dim() == 2
        and x.shape[1] == weight.shape[1]
        and LEAST_ROWS <= len(x) <= MOST_ROWS
        and not (weight.shape[0] % TILE_ROWS or weight.shape[1] % TILE_INPUTS)
        and all(t.is_contiguous() for t in given)
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in given))
    )
