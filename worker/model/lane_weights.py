"""Write how levels are taken out of memory, and made the weights that they stand for."""

from __future__ import annotations

from worker.model.lane_text import GROUP, I8, I32, LANES, TILES, Body, F, Form, same


def levels(b: Body, form: Form, place: str) -> list[str]:
    """Return one vector of bytes for 4 inputs of 16 outputs, or two, the nearer inputs first."""
    octets = b.let(f"load {I8}, ptr {place}, align 4")
    if form.bits == 8:
        return [octets]
    nibble = same(15, "i8", 4 * LANES)
    words = b.let(f"bitcast {I8} {octets} to {I32}")
    above = b.let(f"bitcast {I32} {b.let(f'lshr {I32} {words}, {same(4)}')} to {I8}")
    return [b.let(f"and {I8} {half}, {nibble}") for half in (octets, above)]


def unpack(form: Form) -> str:
    """Write `unpack(w, out, groups, out_bytes)`: `TILES` tiles as bfloat16 `[inputs, outputs]`.

    Rows of `out` are `out_bytes` apart. Levels of 8 bits are left unscaled. The tiles go in step,
    so that what they write fills whole cache lines while those are near.
    """
    b = Body()
    b.do("entry:")
    tile_bytes = b.let(f"mul i64 %groups, {form.group_bytes}")
    b.do("br label %each")
    b.do("each: %g = phi i64 [0, %entry], [%next, %end]")
    base = b.at("%w", b.let(f"mul i64 %g, {form.group_bytes}"))
    to = b.at("%out", b.let(f"mul i64 %out_bytes, {b.let(f'mul i64 %g, {GROUP}')}"))
    b.do("br label %loop")
    b.do("loop: %tile = phi i64 [0, %each], [%next_tile, %loop]")
    group = b.at(base, b.let(f"mul i64 %tile, {tile_bytes}"))
    _unpack_group(b, form, group, b.at(to, b.let(f"mul i64 %tile, {2 * LANES}")))
    b.do("%next_tile = add i64 %tile, 1")
    b.do(f"%all = icmp eq i64 %next_tile, {TILES}")
    b.do("br i1 %all, label %end, label %loop")
    b.do("end: %next = add i64 %g, 1")
    b.do("%done = icmp eq i64 %next, %groups")
    b.do("br i1 %done, label %exit, label %each")
    b.do("exit: ret void")
    return b.function("unpack", "ptr %w, ptr noalias %out, i64 %groups, i64 %out_bytes")


def _unpack_group(b: Body, form: Form, group: str, to: str) -> None:
    scale, middle = b.scale_and_middle(group) if form.has_scales else ("", "")
    for number, octets in enumerate(
        octets for place in form.places(b, group) for octets in levels(b, form, place)
    ):
        words = b.let(f"bitcast {I8} {octets} to {I32}")
        for c in range(4):
            one = b.let(f"and {I32} {b.let(f'lshr {I32} {words}, {same(8 * c)}')}, {same(255)}")
            around = b.let(f"sub {I32} {one}, {same(form.middle)}")
            value = b.let(f"sitofp {I32} {around} to {F}")
            if form.has_scales:
                value = b.fma(scale, value, middle)
            row = b.at(to, b.let(f"mul i64 %out_bytes, {4 * number + c}"))
            b.store_bfloat16(value, row)
