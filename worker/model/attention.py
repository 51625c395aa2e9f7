"""The attention of single positions by code of our own, where it gives the bits of torch's."""

from __future__ import annotations

import ctypes
import math
import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from worker.model.attend_entries import PLAN, module_text
from worker.model.attend_text import BLOCK, FEATURES, MOST_HEAD_DIM, AttendShape, scratch_bytes
from worker.model.lane_program import team_addresses
from worker.model.native_ops import Form, NoNativeOps, compiled, native_op
from worker.model.row_kernels import cancelling

_CPU_INFO = Path("/proc/cpuinfo")
_ONE: tuple[Form, ...] = (
    (0, "stride", 1),
    (1, "stride", 1),
    (2, "stride", 1),
    (1, "size", 2),
)
_ROWS: tuple[Form, ...] = (
    *((tensor, "stride", dim) for tensor in range(3) for dim in (1, 2)),
    (3, "size", 1),
)
# Of the query's heads that one of the keys may have: the code grows with them.
_MOST_SHARED = 32
# Whose `FlashAttentionKernel.cpp`, and what its compiler makes of it, was written down:
# `_mul_reduce_max_fusion_kernel` and `_exp_reduce_sum_fusion_kernel`, two sums of every second
# vector, and `sum + factor * sum` rounded once.
_KNOWN_TORCH, _KNOWN_COMMIT, _KNOWN_COMPILER = "2.13.0", "cf30153c4c13", "GCC 13."
# Numbers of positions to try: the last of a set are done in other ways, and so is the next block.
_TRIED = (*range(1, 20), 31, 33, 40, 63, 100, BLOCK - 1, BLOCK + 1, BLOCK + 25, 2 * BLOCK + 9)
# Scores of the size of what is left of products that cancel each other.
_RAISED = 2.0**14


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of some heads.

    Attributes:
        shape: of the heads.
        one: address of what attends one position.
        rows: address of what attends the rows of a pack.
        scratch_bytes: of memory that either needs beside.
    """

    shape: AttendShape
    one: int
    rows: int
    scratch_bytes: int

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Attend one position: see `op_of_one`."""
        scratch = torch.empty(self.scratch_bytes, dtype=torch.uint8)
        op_of_one()(self.one, query, keys, values, scratch, out)


def op_of_one() -> Any:
    """Return the op `(function, query, keys, values, scratch, out)`.

    The query is `[1, heads, 1, dim]`, keys and values `[1, kv_heads, positions, dim]` with whole
    rows of heads in memory, the result as many numbers as the query, head by head.
    """
    return native_op(5, _ONE)


def op_of_rows() -> Any:
    """Return the op `(function, query, new keys, new values, plan, scratch, out, layer)`.

    The first three are `[1, heads, rows, dim]`, the plan int64 `[layers, rows, 5]` as
    `attend_entries.PLAN` says, the result `[1, rows, heads, dim]`, whole in memory.
    """
    return native_op(6, _ROWS, 1)


def plan_row(keys: torch.Tensor, values: torch.Tensor) -> list[int]:
    """Return what a plan says of the stores of a request in one layer, but for its positions."""
    return [keys.data_ptr(), values.data_ptr(), 2 * keys.stride(1), 2 * values.stride(1)]


UNUSED_ROW = [0] * len(PLAN)


def are_whole(*stores: torch.Tensor) -> bool:
    """Say whether the positions of each head follow each other in memory."""
    return all((store.stride(2), store.stride(3)) == (store.shape[3], 1) for store in stores)


def shape_of(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None
) -> AttendShape | None:
    """Return the shape of an attention over these, `[1, heads, rows, dim]`; None: torch has to.

    Nothing is compiled for that.
    """
    given = (query, keys, values)
    if any(tensor.dim() != 4 for tensor in given) or not is_known():
        return None
    heads, dim = query.shape[1], query.shape[3]
    if not heads or not keys.shape[1]:
        return None
    fits = (
        dim % 32 == 0
        and dim <= MOST_HEAD_DIM
        and heads % keys.shape[1] == 0
        and heads <= _MOST_SHARED * keys.shape[1]
        and keys.shape == values.shape
        and all(_is_plain(tensor, dim) for tensor in given)
    )
    scaled = 1 / math.sqrt(dim) if scale is None else scale
    return AttendShape(heads, keys.shape[1], dim, scaled) if fits else None


def _is_plain(tensor: torch.Tensor, dim: int) -> bool:
    return (
        tensor.shape[0] == 1
        and tensor.shape[3] == dim
        and tensor.stride(3) == 1
        and tensor.dtype is torch.bfloat16
        and tensor.device.type == "cpu"
    )


def attention(shape: AttendShape) -> Attention | None:
    """Return what attends heads of a shape; None where it is not to be had with torch's bits."""
    return _attention(shape, torch.get_num_threads())


@cache
def _attention(shape: AttendShape, threads: int) -> Attention | None:
    with suppress(Exception):  # whatever a machine lacks: then torch does it
        code = _code(shape, threads)
        one, rows = map(code.get_function_address, ("attend_one", "attend_rows"))
        found = Attention(shape, one, rows, threads * scratch_bytes(shape))
        return found if _is_exact(found) else None
    return None


@cache  # torch may call it as long as the process lives
def _code(shape: AttendShape, threads: int) -> Any:
    symbols = team_addresses() if threads > 1 else {}
    if threads > 1 and not symbols:
        raise NoNativeOps("torch's OpenMP threads are not found")
    exponential = ctypes.CDLL("libm.so.6").expf
    symbols["expf"] = ctypes.cast(exponential, ctypes.c_void_p).value or 0
    features = ",".join(f"+{name.replace('_', '')}" for name in FEATURES)
    return compiled(module_text(shape, threads), symbols, features)


@torch.inference_mode()
def _is_exact(found: Attention) -> bool:
    shape, most = found.shape, max(_TRIED)
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator).bfloat16()

    query = random(1, shape.heads, 1, shape.head_dim)
    hard = cancelling(query[0, :, 0], random(most, shape.head_dim))
    hard_query = (hard[0] * _RAISED)[None, :, None]
    keys, values, hard_keys = (
        states.expand(1, shape.kv_heads, -1, -1)
        for states in (*random(2, most, shape.head_dim), hard[1])
    )
    for end in _TRIED:
        seen = keys[:, :, :end], values[:, :, :end]
        kinds = [(query, *seen), (hard_query, hard_keys[:, :, :end], seen[1])]
        if end > 1:
            weights = query.new_empty(1, end), query.new_empty(shape.head_dim, end)
            summed = cancelling(*weights)[1].t().contiguous().expand(1, shape.kv_heads, -1, -1)
            kinds.append((torch.zeros_like(query), seen[0], summed))
        for given in kinds:
            wanted = torch.ops.aten.scaled_dot_product_attention(
                *given, None, 0.0, False, scale=shape.scale, enable_gqa=shape.shared > 1
            )
            result = torch.empty_like(wanted)
            found.attend(*given, result)
            if not torch.equal(result.view(torch.int16), wanted.view(torch.int16)):
                return False
    return True


@cache
def is_known() -> bool:
    """Say whether torch attends as it is written down here, as far as no trial can tell.

    Other sums of the weights would show in one of some 300,000 results.
    """
    is_same = (
        torch.__version__.split("+")[0] == _KNOWN_TORCH
        and str(torch.version.git_version).startswith(_KNOWN_COMMIT)
        and _KNOWN_COMPILER in torch.__config__.show()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )
    if not is_same:
        return False
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    with suppress(OSError):
        features = _CPU_INFO.read_text(encoding="utf-8", errors="replace").split()
        return not set(FEATURES).difference(features)
    return False
