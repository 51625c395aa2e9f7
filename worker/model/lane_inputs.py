"""Write how rows of inputs become whole numbers; see `lane_text`."""

from __future__ import annotations

from worker.model.lane_text import (
    GROUP,
    POWER_AT,
    RECORD_BYTES,
    SUM_AT,
    TOTAL_AT,
    Body,
    Form,
    same,
)

_WIDE_F, _WIDE_I = f"<{GROUP} x float>", f"<{GROUP} x i32>"
# The exponents of bfloat16 for which the powers of two below are floats, and that of no number.
_LEAST_EXPONENT, _BAD_EXPONENT = 14, 255
_KEPT_BITS = 14
_NAN_BITS = 0x7FC00000


def prepare(form: Form, is_split: bool) -> str:
    """Write `prepare(x, records, groups)`: bring a bfloat16 row into whole numbers.

    Args:
        is_split: whether high and low bytes of the numbers lie apart.
    """
    b = Body()
    short = f"<{GROUP} x i16>"
    b.do("entry: br label %loop")
    b.do("loop: %g = phi i64 [0, %entry], [%next, %loop]")
    x = b.at("%x", b.let(f"mul i64 %g, {2 * GROUP}"))
    record = b.at("%records", b.let(f"mul i64 %g, {RECORD_BYTES}"))
    bits = b.let(f"load {short}, ptr {x}, align 2")
    sizes = b.let(f"and {short} {bits}, {same(0x7FFF, 'i16', GROUP)}")
    largest = b.let(f"call i16 @llvm.vector.reduce.umax.v{GROUP}i16({short} {sizes})")
    found = b.let(f"zext i16 {b.let(f'lshr i16 {largest}, 7')} to i32")
    exponent = b.let(f"call i32 @llvm.umax.i32(i32 {found}, i32 {_LEAST_EXPONENT})")
    is_bad = b.let(f"icmp eq i32 {found}, {_BAD_EXPONENT}")
    kept = b.let(f"select i1 {is_bad}, {short} zeroinitializer, {short} {bits}")
    wide = b.let(
        f"shl {_WIDE_I} {b.let(f'zext {short} {kept} to {_WIDE_I}')}, {same(16, 'i32', GROUP)}"
    )
    numbers = b.let(f"bitcast {_WIDE_I} {wide} to {_WIDE_F}")
    up = b.let(f"shl i32 {b.let(f'sub i32 {253 + _KEPT_BITS}, {exponent}')}, 23")
    factor = b.spread("float", b.let(f"bitcast i32 {up} to float"), GROUP)
    raised = b.let(f"fmul {_WIDE_F} {numbers}, {factor}")
    whole = b.let(f"call {_WIDE_F} @llvm.rint.v{GROUP}f32({_WIDE_F} {raised})")
    levels = b.let(f"fptosi {_WIDE_F} {whole} to {_WIDE_I}")
    total = b.let(f"call i32 @llvm.vector.reduce.add.v{GROUP}i32({_WIDE_I} {levels})")
    power_bits = b.let(f"shl i32 {b.let(f'sub i32 {exponent}, {_KEPT_BITS - 1}')}, 23")
    power_bits = b.let(f"select i1 {is_bad}, i32 {_NAN_BITS}, i32 {power_bits}")
    power = b.let(f"bitcast i32 {power_bits} to float")
    taken = b.let(f"mul i32 {total}, {-form.middle}")
    scaled = b.let(f"fmul float {b.let(f'sitofp i32 {total} to float')}, {power}")
    b.do(f"store i32 {taken}, ptr {b.at(record, SUM_AT)}, align 4")
    b.do(f"store float {power}, ptr {b.at(record, POWER_AT)}, align 4")
    b.do(f"store float {scaled}, ptr {b.at(record, TOTAL_AT)}, align 4")
    (_store_split if is_split else _store_pairs)(b, levels, record)
    b.do("%next = add i64 %g, 1")
    b.do("%done = icmp eq i64 %next, %groups")
    b.do("br i1 %done, label %end, label %loop")
    b.do("end: ret void")
    return b.function("prepare", "ptr %x, ptr %records, i64 %groups")


def _store_split(b: Body, levels: str, record: str) -> None:
    small = f"<{GROUP} x i8>"
    eight = same(8, "i32", GROUP)
    up = b.let(f"add {_WIDE_I} {levels}, {same(128, 'i32', GROUP)}")
    high = b.let(f"ashr {_WIDE_I} {up}, {eight}")
    low = b.let(f"sub {_WIDE_I} {levels}, {b.let(f'shl {_WIDE_I} {high}, {eight}')}")
    for offset, value in ((0, high), (GROUP, low)):
        octets = b.let(f"trunc {_WIDE_I} {value} to {small}")
        b.do(f"store {small} {octets}, ptr {b.at(record, offset)}, align 4")


def _store_pairs(b: Body, levels: str, record: str) -> None:
    """Of four inputs the first and third, then the second and fourth."""
    short = f"<{GROUP} x i16>"
    order = ", ".join(f"i32 {4 * i + j}" for i in range(GROUP // 4) for j in (0, 2, 1, 3))
    halves = b.let(f"trunc {_WIDE_I} {levels} to {short}")
    ordered = f"shufflevector {short} {halves}, {short} poison, <{GROUP} x i32> <{order}>"
    b.do(f"store {short} {b.let(ordered)}, ptr {record}, align 4")
