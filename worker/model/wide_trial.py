"""Find out in which order torch adds up the product of a weight and many rows."""

from __future__ import annotations

import mmap
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional

from worker.model.row_kernels import cancelling
from worker.model.wide_program import WideProgram
from worker.model.wide_tiles import TILE_INPUTS

# Far above one, and both are exact in bfloat16.
_HUGE = 2.0**40
_HUGE_ZEROS = Path("/sys/kernel/mm/transparent_hugepage/use_zero_page")
# Outputs and rows whose numbers cancel each other.
_TRIED_OUTPUTS, _TRIED_ROWS = 64, 16


def torchs_piece(program: WideProgram, rows: int, outputs: int, inputs: int) -> int | None:
    """Return how many inputs torch's `linear` adds up at a time; None if its bits are not ours.

    Torch multiplies numbers that show the order of its sums. The first outputs have such as cancel
    each other, in which any other order than that of `program` shows. Each output after them looks
    at one place of the inputs: a number far above one is in the tile before, its opposite in the
    tile behind it, and a one in the tile after that. Where torch begins a piece at that place, the
    one is added to the opposite alone, and lost.

    Raises:
        OSError, RuntimeError: the system gives no memory for it.
    """
    if outputs <= _TRIED_OUTPUTS:
        return None
    values, weights = _cancelling(inputs)
    x = values.repeat(-(-rows // len(values)), 1)[:rows]
    x[0] = 1.0
    weight = torch.frombuffer(_unwritten(2 * outputs * inputs), dtype=torch.bfloat16)
    weight = weight.view(outputs, inputs)
    weight[:_TRIED_OUTPUTS] = weights
    places, looking = range(1, inputs // TILE_INPUTS - 1), weight[_TRIED_OUTPUTS:]
    torchs, begun = weight, list[int]()
    for first in range(0, max(len(places), 1), len(looking)):
        here = places[first : first + len(looking)]
        _look(looking, here)
        torchs = functional.linear(x, weight)
        ones = torchs[0, _TRIED_OUTPUTS:].tolist()
        begun += [place for place, one in zip(here, ones, strict=False) if not one]
    piece = (begun[0] if begun else inputs // TILE_INPUTS) * TILE_INPUTS
    ours = program.multiply(x, weight[:_TRIED_OUTPUTS], piece)
    return piece if _same_bits(ours, torchs[:, :_TRIED_OUTPUTS].contiguous()) else None


def _look(weight: torch.Tensor, places: range) -> None:
    weight[: len(places)] = 0.0
    rows, inputs = torch.arange(len(places)), TILE_INPUTS * torch.tensor(places, dtype=torch.int64)
    weight[rows, inputs - TILE_INPUTS] = _HUGE
    weight[rows, inputs] = -_HUGE
    weight[rows, inputs + TILE_INPUTS] = 1.0


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def _unwritten(size_bytes: int) -> mmap.mmap:
    """Return memory of which pages that are only read take none: all are the system's one of zeros.

    There is a huge one too, with which fewer pages are missed, unless the system has it off.
    """
    block = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, ValueError):
        has_zeros = bool(int(_HUGE_ZEROS.read_text()))
        block.madvise(mmap.MADV_HUGEPAGE if has_zeros else mmap.MADV_NOHUGEPAGE)
    return block


@cache
def _cancelling(inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    like = torch.empty(_TRIED_ROWS, inputs, dtype=torch.bfloat16)
    return cancelling(like, like.new_empty(_TRIED_OUTPUTS, inputs))
