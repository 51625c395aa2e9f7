"""Write products of a few rows by rounded weights; see `lane_text`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worker.model.lane_text import (
    GROUP,
    I8,
    I16,
    I32,
    LANES,
    POWER_AT,
    RECORD_BYTES,
    SUM_AT,
    TILES,
    TOTAL_AT,
    VECTOR_BYTES,
    Body,
    F,
    Form,
    same,
)
from worker.model.lane_weights import levels

# Rows that share what is unpacked, and side by side with how many tiles of 16 outputs: as many
# sums as keep a processor busy and fit its registers.
SHAPES = ((4, 2), (2, 2), (1, 4))
# Groups of inputs that weights are asked for before they are needed; see `amx_text`.
_AHEAD = 8
Sums = tuple[str, str]
Dot = Callable[[Body, str, str, int, Sums], Sums]


def dot_vnni(b: Body, levels: str, record: str, inputs: int, sums: Sums) -> Sums:
    """Add products of levels `<64 x i8>` to two sums: by the high bytes of inputs, by the low."""
    found = []
    for total, offset in zip(sums, (inputs, GROUP + inputs), strict=True):
        by = b.let(f"bitcast {I32} {b.spread_at('i32', record, offset)} to {I8}")
        call = "@llvm.x86.avx512.vpdpbusd.512"
        found.append(b.let(f"call {I32} {call}({I32} {total}, {I8} {levels}, {I8} {by})"))
    return found[0], found[1]


def dot_any(b: Body, levels: str, record: str, inputs: int, sums: Sums) -> Sums:
    """Do the same on any processor, with pairs of 16 bits; the second sum has it all."""
    total = sums[1]
    both = b.let(f"bitcast {I8} {levels} to {I16}")
    even = b.let(f"and {I16} {both}, {same(255, 'i16', 2 * LANES)}")
    odd = b.let(f"lshr {I16} {both}, {same(8, 'i16', 2 * LANES)}")
    for pairs, offset in ((even, 2 * inputs), (odd, 2 * inputs + 4)):
        by = b.let(f"bitcast {I32} {b.spread_at('i32', record, offset)} to {I16}")
        terms = []
        for first in (0, 1):
            half = f"<{LANES} x i32> <" + ", ".join(f"i32 {2 * i + first}" for i in range(LANES))
            wide = []
            for vector in (pairs, by):
                part = b.let(f"shufflevector {I16} {vector}, {I16} poison, {half}>")
                wide.append(b.let(f"sext <{LANES} x i16> {part} to {I32}"))
            terms.append(b.let(f"mul {I32} {wide[0]}, {wide[1]}"))
        total = b.let(f"add {I32} {total}, {b.let(f'add {I32} {terms[0]}, {terms[1]}')}")
    return sums[0], total


def rows(form: Form, dot: Dot, count: int, tiles: int) -> str:
    """Write `rows<count>(w, scales, records, y, groups, y_bytes)`: so many rows, `TILES` tiles."""
    b = Body()
    b.do("entry:")
    tile_bytes = b.let(f"mul i64 %groups, {form.group_bytes}")
    row_bytes = b.let(f"mul i64 %groups, {RECORD_BYTES}")
    b.do("br label %each")
    b.do("each: %tile = phi i64 [0, %entry], [%next_tile, %end]")
    first = b.at("%w", b.let(f"mul i64 %tile, {tile_bytes}"))
    bases = [b.at(first, b.let(f"mul i64 {tile_bytes}, {t}")) for t in range(tiles)]
    inputs = [b.at("%records", b.let(f"mul i64 {row_bytes}, {r}")) for r in range(count)]
    b.do("br label %loop")
    b.do("loop: %g = phi i64 [0, %each], [%next, %loop]")
    for t in range(tiles):
        for r in range(count):
            b.do(f"%y{t}_{r} = phi {F} [zeroinitializer, %each], [%new{t}_{r}, %loop]")
    here = b.let(f"mul i64 %g, {form.group_bytes}")
    there = b.let(f"mul i64 %g, {RECORD_BYTES}")
    weights = [b.at(base, here) for base in bases]
    records = [b.at(base, there) for base in inputs]
    for place in weights:
        begin = form.group_bytes * _AHEAD
        for offset in range(begin, begin + form.group_bytes, VECTOR_BYTES):
            b.do(f"call void @llvm.prefetch.p0(ptr {b.at(place, offset)}, i32 0, i32 3, i32 1)")
    _group(b, form, dot, weights, records)
    b.do("%next = add i64 %g, 1")
    b.do("%done = icmp eq i64 %next, %groups")
    b.do("br i1 %done, label %end, label %loop")
    b.do("end:")
    _finish(b, form, tiles, count)
    b.do(f"%next_tile = add i64 %tile, {tiles}")
    b.do(f"%all = icmp eq i64 %next_tile, {TILES}")
    b.do("br i1 %all, label %exit, label %each")
    b.do("exit: ret void")
    arguments = "ptr %w, ptr %scales, ptr %records, ptr noalias %y, i64 %groups, i64 %y_bytes"
    return b.function(f"rows{count}", arguments)


def _group(b: Body, form: Form, dot: Dot, weights: Sequence[str], records: Sequence[str]) -> None:
    """Add one group of inputs to `%y<tile>_<row>`, giving `%new<tile>_<row>`."""
    taken = [b.spread_at("i32", record, SUM_AT) for record in records]
    sums = {
        (t, r): ("zeroinitializer", taken[r])
        for t in range(len(weights))
        for r in range(len(records))
    }
    for t, base in enumerate(weights):
        inputs = 0
        for place in form.places(b, base):
            for octets in levels(b, form, place):
                for r, record in enumerate(records):
                    sums[t, r] = dot(b, octets, record, inputs, sums[t, r])
                inputs += 4
    for t, base in enumerate(weights):
        scale, middle = b.scale_and_middle(base) if form.has_scales else ("", "")
        for r, record in enumerate(records):
            high, low = sums[t, r]
            if high != "zeroinitializer":
                high = b.let(f"shl {I32} {high}, {same(8)}")
                low = b.let(f"add {I32} {high}, {low}")
            whole = b.let(f"sitofp {I32} {low} to {F}")
            power = b.spread_at("float", record, POWER_AT)
            total = f"%y{t}_{r}"
            if form.has_scales:
                total = b.fma(middle, b.spread_at("float", record, TOTAL_AT), total)
                whole, power = b.let(f"fmul {F} {whole}, {power}"), scale
            b.do(
                f"%new{t}_{r} = call {F} @llvm.fma.v{LANES}f32({F} {whole}, {F} {power}, "
                f"{F} {total})"
            )


def _finish(b: Body, form: Form, tiles: int, count: int) -> None:
    start = b.let(f"mul i64 %tile, {2 * LANES}")
    for t in range(tiles):
        scale = ""
        if not form.has_scales:
            begin = b.let(f"mul i64 %tile, {4 * LANES}")
            place = b.at(b.at("%scales", begin), 4 * LANES * t)
            scale = b.let(f"load {F}, ptr {place}, align 4")
        for r in range(count):
            row = b.at(b.at("%y", b.let(f"mul i64 %y_bytes, {r}")), start)
            value = f"%new{t}_{r}"
            if scale:
                value = b.let(f"fmul {F} {value}, {scale}")
            b.store_bfloat16(value, b.at(row, 2 * LANES * t))
