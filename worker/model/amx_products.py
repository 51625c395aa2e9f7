"""Products of a weight and up to 16 rows by code of our own, with the bits of torch's."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from worker.model.amx_entries import module_text
from worker.model.amx_text import FEATURES, INPUTS, OUTPUTS, ProductShape
from worker.model.lane_program import team_addresses
from worker.model.native_ops import NoNativeOps, compiled, native_op
from worker.model.row_kernels import trials
from worker.model.tape import CannotReplay

# Larger ones were not measured.
MOST_BYTES = 64 << 20
_MOST_TRIED_BYTES = 16 << 20
ROWS = (1, 2, 4, 8, 16)
_CPU_INFO = Path("/proc/cpuinfo")
# `arch_prctl` of Linux: a process asks once whether it may use the tiles.
_ARCH_PRCTL, _ASK, _TILES = 158, 0x1023, 18


@dataclass(frozen=True)
class AmxProduct:
    """Stands in the place of the op `mm` for a weight and columns.

    Attributes:
        address: of the function, see `op`.
        rows: how many there are.
        namespace: where the columns lie otherwise than the function needs, it is `mm` after all.
    """

    address: int
    rows: int
    namespace: str = field(default="aten", repr=False, compare=False)
    overloadpacket: Any = field(default=torch.ops.aten.mm, repr=False, compare=False)
    _schema: Any = field(default=torch.ops.aten.mm.default._schema, repr=False, compare=False)

    @staticmethod
    def takes(columns: torch.Tensor) -> bool:
        """Say whether columns `[inputs, rows]` lie as the function needs: each whole in memory."""
        return columns.t().is_contiguous()

    @property
    def op(self) -> Any:
        """The op `(address, weight, rows, result)`; of several rows with scratch before the result.

        Rows and result are whole in memory, `[rows, inputs]` and `[rows, outputs]`.
        """
        return native_op(3 if self.rows == 1 else 4)

    def scratch_bytes(self, weight: torch.Tensor) -> int:
        """Return how much memory it needs beside; 0 is none at all."""
        return 0 if self.rows == 1 else self.rows * weight.shape[1] * weight.element_size()

    def multiply(self, weight: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Write `[rows, outputs]` to `out`."""
        size = self.scratch_bytes(weight)
        scratch = [torch.empty(size, dtype=torch.uint8)] if size else []
        self.op(self.address, weight, rows, *scratch, out)

    def form(self, weight: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Return zeros in the form of the result `[outputs, rows]`: each column whole in memory.

        Raises:
            CannotReplay: there are more or fewer columns.
        """
        if columns.shape[1] != self.rows:
            raise CannotReplay(f"{columns.shape[1]} columns for a product of {self.rows}")
        if self.rows > 1 and self.takes(columns):
            return columns.new_zeros(self.rows, len(weight)).t()
        return columns.new_zeros(len(weight), columns.shape[1])


def amx_products(weights: Sequence[torch.Tensor], rows: int = 1) -> dict[torch.Size, AmxProduct]:
    """Return a product by so many rows for each shape of weights that has one with torch's bits.

    Those are the bits of `mv` for one row, and of `mm` for several. Numbers that cancel each other
    show the order in which sums are taken.
    """
    fitting = {
        weight.shape: (weight, ProductShape(len(weight), weight.shape[1], rows))
        for weight in weights
        if _fits(weight, rows)
    }
    found: dict[torch.Size, AmxProduct] = {}
    if not fitting or not has_tiles():
        return found
    # what a machine lacks: then torch's kernels do it all
    with suppress(NoNativeOps, OSError, RuntimeError, AttributeError, ImportError):
        shapes = {shape for _, whole in fitting.values() for shape in (whole, _tried(whole))}
        code = _code(tuple(sorted(shapes)), torch.get_num_threads())
        for weight, shape in fitting.values():
            tried = _tried(shape)
            like = weight.new_empty(tried.outputs, tried.inputs)
            if _is_exact(AmxProduct(code.get_function_address(tried.name), rows), like):
                found[weight.shape] = AmxProduct(code.get_function_address(shape.name), rows)
    return found


def _fits(weight: torch.Tensor, rows: int) -> bool:
    outputs, inputs = weight.shape
    is_plain = weight.dtype is torch.bfloat16 and weight.device.type == "cpu"
    return (
        is_plain
        and weight.is_contiguous()
        and weight.nbytes <= MOST_BYTES
        and outputs % (2 * OUTPUTS) == 0
        and inputs % INPUTS == 0
        and rows in ROWS
    )


def _tried(shape: ProductShape) -> ProductShape:
    """Return a shape to try: the order of a sum depends on the inputs."""
    most = _MOST_TRIED_BYTES // (2 * shape.inputs) // (2 * OUTPUTS) * 2 * OUTPUTS
    return replace(shape, outputs=min(shape.outputs, max(most, 2 * OUTPUTS)))


def _is_exact(product: AmxProduct, weight: torch.Tensor) -> bool:
    like = weight.new_empty(product.rows, weight.shape[1])
    for rows, like_weight, _ in trials(like, weight, False):
        result = rows.new_full((len(rows), len(like_weight)), 7.0)
        product.multiply(like_weight, rows, result)
        if product.rows == 1:
            wanted = torch.mv(like_weight, rows[0])[None]
        else:
            wanted = torch.mm(like_weight, rows.t()).t().contiguous()
        if not torch.equal(result.view(torch.int16), wanted.view(torch.int16)):
            return False
    return True


@cache
def _code(shapes: tuple[ProductShape, ...], threads: int) -> Any:
    """Compile the products of some shapes; the code stays as long as the process.

    Raises:
        NoNativeOps: not on this machine.
    """
    symbols = team_addresses() if threads > 1 else {}
    if threads > 1 and not symbols:
        raise NoNativeOps("torch's OpenMP threads are not found")
    features = ",".join(f"+{name.replace('_', '-')}" for name in FEATURES)
    return compiled(module_text(shapes, threads), symbols, features)


@cache
def has_tiles() -> bool:
    """Say whether this process may use AMX for bfloat16."""
    if not processor_has(*FEATURES):
        return False
    with suppress(OSError, AttributeError):
        return not ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK, _TILES)
    return False


def processor_has(*features: str) -> bool:
    """Say whether Linux names all of these for an x86 processor."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    with suppress(OSError):
        found = _CPU_INFO.read_text(encoding="utf-8", errors="replace").split()
        return not set(features).difference(found)
    return False
