"""Write the exponential of torch's attention in LLVM assembly.

A. C. I. Malossi, Y. Ineichen, C. Bekas, A. Curioni, "Fast Exponential Computation on SIMD
Architectures" (2015): the bits of a float32 are its logarithm, nearly, so `x * log2(e)` becomes
`exp(x)` when it is put in their place; a polynomial of the fraction makes up for the difference.
Constants are those of torch's `fexp_u20`.
"""

from __future__ import annotations

import struct

from worker.model.attend_floats import same_float
from worker.model.lane_text import I32, LANES, Body, F, same

# Of the fraction, from the lowest power on.
_POLYNOMIAL = (
    0.00010703434948458272,
    0.30354260500649682,
    -0.22433836478672356,
    -0.079204240219773236,
)
_LOG2_E, _LEAST, _MOST = 0x3FB8AA3B, 0xC2AEAC50, 0x42B17218
_INFINITY, _MANTISSA, _BIAS = 0x7F800000, 1 << 23, 127


def exponential(b: Body, value: str) -> str:
    """Return `exp(value)` of 16 float32."""
    log2_e = same_float(_from_bits(_LOG2_E))
    scaled = b.let(f"fmul {F} {value}, {log2_e}")
    whole = b.let(f"call {F} @llvm.floor.v16f32({F} {scaled})")
    fraction = b.let(f"fsub {F} {scaled}, {whole}")
    *lower, highest = _POLYNOMIAL
    difference = same_float(highest)
    for factor in reversed(lower):
        difference = b.fma(fraction, difference, same_float(factor))
    scaled = b.let(f"fsub {F} {scaled}, {difference}")
    placed = b.fma(same_float(float(_MANTISSA)), scaled, same_float(float(_MANTISSA * _BIAS)))
    name = "@llvm.x86.avx512.mask.cvttps2dq.512"
    bits = b.let(f"call {I32} {name}({F} {placed}, {I32} zeroinitializer, i16 -1, i32 4)")
    for compared, limit, instead in (("olt", _LEAST, 0), ("ogt", _MOST, _INFINITY)):
        is_beyond = b.let(f"fcmp {compared} {F} {value}, {same_float(_from_bits(limit))}")
        bits = b.let(f"select <{LANES} x i1> {is_beyond}, {I32} {same(instead)}, {I32} {bits}")
    return b.let(f"bitcast {I32} {bits} to {F}")


def _from_bits(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value
