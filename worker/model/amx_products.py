"""Products of a weight and one row by code of our own, where it gives the bits of torch's."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from worker.model.amx_text import FEATURES, INPUTS, OUTPUTS, module_text, name_of
from worker.model.lane_program import team_addresses
from worker.model.native_ops import NoNativeOps, compiled, native_op
from worker.model.row_kernels import trials

# Larger ones were not measured.
MOST_BYTES = 64 << 20
_MOST_TRIED_BYTES = 16 << 20
_CPU_INFO = Path("/proc/cpuinfo")
# `arch_prctl` of Linux: a process asks once whether it may use the tiles.
_ARCH_PRCTL, _ASK, _TILES = 158, 0x1023, 18


@dataclass(frozen=True)
class AmxProduct:
    """Stands in the place of the op `mm` for a weight and one column; its result has a buffer.

    Attributes:
        address: of the function, which takes weight, column and result.
        namespace: where the column lies otherwise than the function needs, it is `mm` after all.
    """

    address: int
    namespace: str = field(default="aten", repr=False, compare=False)
    overloadpacket: Any = field(default=torch.ops.aten.mm, repr=False, compare=False)
    _schema: Any = field(default=torch.ops.aten.mm.default._schema, repr=False, compare=False)


def amx_products(weights: Sequence[torch.Tensor]) -> dict[torch.Size, AmxProduct]:
    """Return a product for each shape of weights that has one with the bits of `mv`.

    Numbers that cancel each other show the order in which sums are taken.
    """
    fitting = {tuple(weight.shape): weight for weight in weights if _fits(weight)}
    found: dict[torch.Size, AmxProduct] = {}
    if not fitting or not has_tiles():
        return found
    # what a machine lacks: then torch's kernels do it all
    with suppress(NoNativeOps, OSError, RuntimeError, AttributeError, ImportError):
        shapes = {*fitting, *map(_tried, fitting)}
        code = _code(tuple(sorted(shapes)), torch.get_num_threads())
        for shape, weight in fitting.items():
            tried = AmxProduct(code.get_function_address(name_of(*_tried(shape))))
            if _is_exact(tried, weight.new_empty(_tried(shape))):
                found[weight.shape] = AmxProduct(code.get_function_address(name_of(*shape)))
    return found


def _fits(weight: torch.Tensor) -> bool:
    outputs, inputs = weight.shape
    is_plain = weight.dtype is torch.bfloat16 and weight.device.type == "cpu"
    return (
        is_plain
        and weight.is_contiguous()
        and weight.nbytes <= MOST_BYTES
        and outputs % (2 * OUTPUTS) == 0
        and inputs % INPUTS == 0
    )


def _tried(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return a shape to try: the order of a sum depends on the inputs."""
    outputs, inputs = shape
    most = _MOST_TRIED_BYTES // (2 * inputs) // (2 * OUTPUTS) * 2 * OUTPUTS
    return min(outputs, max(most, 2 * OUTPUTS)), inputs


def _is_exact(product: AmxProduct, weight: torch.Tensor) -> bool:
    op = native_op(3)
    for rows, like_weight, _ in trials(weight.new_empty(1, weight.shape[1]), weight, False):
        result = like_weight.new_empty(len(like_weight))
        op(product.address, like_weight, rows, result)
        if not torch.equal(result, torch.mv(like_weight, rows[0])):
            return False
    return True


@cache
def _code(shapes: tuple[tuple[int, int], ...], threads: int) -> Any:
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
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    with suppress(OSError, AttributeError):
        features = _CPU_INFO.read_text(encoding="utf-8", errors="replace").split()
        asked = ctypes.CDLL(None).syscall
        return not set(FEATURES).difference(features) and not asked(_ARCH_PRCTL, _ASK, _TILES)
    return False
