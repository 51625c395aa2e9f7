"""Write float32 and bfloat16 numbers in LLVM assembly, as torch's attention has them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from worker.model.lane_text import I32, LANES, Body, F, same

# 16 bfloat16 numbers as bits, and a vector of pairs of them.
BF16_HALVES = f"<{LANES} x i16>"
PAIRS = f"<{2 * LANES} x bfloat>"
DOT = "@llvm.x86.avx512bf16.dpbf16ps.512"
_NAN = 0xFFFF


def float_text(value: float) -> str:
    """Write a number as a float32; LLVM writes it as the double of the same number."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


def same_float(value: float) -> str:
    """Write a vector of one float32."""
    return "<" + ", ".join([f"float {float_text(value)}"] * LANES) + ">"


def places_text(places: Sequence[int]) -> str:
    """Write the places that a shuffle takes."""
    return f"<{len(places)} x i32> <{', '.join(f'i32 {place}' for place in places)}>"


def dot(b: Body, total: str, one: str, other: str) -> str:
    """Add the products of 16 pairs to 16 totals: the later of each pair first."""
    return b.let(f"call {F} {DOT}({F} {total}, {PAIRS} {one}, {PAIRS} {other})")


def rounded(b: Body, value: str) -> str:
    """Round to bfloat16, ties to even; what is no number gets the bits that torch gives it."""
    bits = b.let(f"bitcast {F} {value} to {I32}")
    odd = b.let(f"and {I32} {b.let(f'lshr {I32} {bits}, {same(16)}')}, {same(1)}")
    raised = b.let(f"add {I32} {b.let(f'add {I32} {odd}, {same(0x7FFF)}')}, {bits}")
    high = b.let(f"lshr {I32} {raised}, {same(16)}")
    is_nan = b.let(f"fcmp uno {F} {value}, {value}")
    chosen = b.let(f"select <{LANES} x i1> {is_nan}, {I32} {same(_NAN)}, {I32} {high}")
    return b.let(f"trunc {I32} {chosen} to {BF16_HALVES}")
