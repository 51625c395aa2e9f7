"""Compile the product of a weight and many rows for this processor, and call it."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from functools import cache

import torch

from worker.model.amx_products import has_tiles, processor_has
from worker.model.amx_text import FEATURES
from worker.model.lane_program import team_addresses
from worker.model.native_ops import NoNativeOps, compiled
from worker.model.wide_text import BLOCK, FEATURE, ROWS_TOGETHER, TABLE, module_text
from worker.model.wide_tiles import SUMS_BYTES, TILE_INPUTS, TILE_ROWS

_LINE_BYTES = 64
_compiling = threading.Lock()


class WideProgram:
    """The compiled product for a number of threads; several threads may call at once.

    Attributes:
        threads: among which the outputs are divided.
    """

    def __init__(self, threads: int) -> None:
        """Compile; a tenth of a second.

        Raises:
            NoNativeOps: torch or the compiler is not as it has to be.
        """
        symbols = team_addresses() if threads > 1 else {}
        if threads > 1 and not symbols:
            raise NoNativeOps("torch's OpenMP threads are not found")
        # LLVM writes Linux's names otherwise
        names = [name.replace("_", "-") for name in FEATURES] + [FEATURE.replace("_", "")]
        self._code = compiled(module_text(threads), symbols, ",".join(f"+{n}" for n in names))
        address = self._code.get_function_address("wide")
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        self.threads = threads
        self._own = _Own()

    def multiply(self, x: torch.Tensor, weight: torch.Tensor, piece: int) -> torch.Tensor:
        """Return `x @ weight.T` as bfloat16 `[rows, outputs]`.

        Args:
            x: bfloat16 `[rows, inputs]`, contiguous; inputs are a multiple of `TILE_INPUTS`.
            weight: bfloat16 `[outputs, inputs]`, contiguous; outputs a multiple of `TILE_ROWS`.
            piece: so many inputs are added up at a time, a multiple of `TILE_INPUTS`.
        """
        rows, inputs = x.shape
        twins = -(-rows // ROWS_TOGETHER)
        pairs_bytes = 2 * ROWS_TOGETHER * twins * inputs
        sums_bytes = self.threads * 2 * BLOCK * twins * SUMS_BYTES
        pairs = self._own.scratch(pairs_bytes + sums_bytes)
        y = x.new_empty(ROWS_TOGETHER * twins, len(weight))
        given = {
            "w": weight.data_ptr(),
            "x": x.data_ptr(),
            "pairs": pairs,
            "sums": pairs + pairs_bytes,
            "y": y.data_ptr(),
            "rows": rows,
            "outputs": len(weight) // TILE_ROWS,
            "inputs": inputs // TILE_INPUTS,
            "twins": twins,
            "piece": piece // TILE_INPUTS,
            "ahead": -(-TILE_ROWS // twins),
        }
        self._run((ctypes.c_int64 * len(TABLE))(*(given[name] for name in TABLE)))
        return y[:rows]


class _Own(threading.local):
    """Memory that a thread keeps from one product to the next."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def scratch(self, size_bytes: int) -> int:
        """Return the address of so much, at the begin of a cache line."""
        if self._memory.numel() < size_bytes + _LINE_BYTES:
            del self._memory  # before there is more
            self._memory = torch.empty(size_bytes + _LINE_BYTES, dtype=torch.uint8)
        return -(-self._memory.data_ptr() // _LINE_BYTES) * _LINE_BYTES


def wide_program(threads: int) -> WideProgram | None:
    """Return the product for so many threads, compiled once; None where it cannot be."""
    with _compiling:
        return _compiled(threads)


@cache
def can_be_wide() -> bool:
    """Say whether this processor is one that the product is written for."""
    return has_tiles() and processor_has(FEATURE)


@cache
def _compiled(threads: int) -> WideProgram | None:
    # what a machine lacks: then torch's kernels do it all
    with suppress(NoNativeOps, OSError, RuntimeError, AttributeError, ImportError):
        return WideProgram(threads) if can_be_wide() else None
    return None
