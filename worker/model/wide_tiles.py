"""Write in LLVM assembly how tiles of products are added up and rounded."""

from __future__ import annotations

from worker.model.amx_rows import square, squares_turned

# What one tile holds: rows or outputs, and inputs.
TILE_ROWS, TILE_INPUTS = 16, 32
# A tile of sums.
SUMS_BYTES = 1024
_LANES, _FLOATS = "<16 x i32>", "<16 x float>"
_ROUND = "llvm.x86.avx512bf16.cvtneps2bf16.512"
_DECLARED = f"declare <16 x bfloat> @{_ROUND}(<16 x float>)\n"


def tiles_text() -> str:
    """Write what works on two tiles of sums, those of some outputs by twice 16 rows.

    `piece(w, x0, x1, stride, tiles, to, near, ahead)` adds up a piece of the inputs from zero, and
    asks for `ahead` rows of the weight from `near` on at each tile. `added(new, sums)` adds a piece
    to those before, `rounded(new, sums, y, stride)` gives the result of a piece that is alone, and
    `summed(new, sums, y, stride)` that of the last one.
    """
    return _DECLARED + _PIECE + _summing()


_PIECE = f"""
define internal void @piece(ptr %w, ptr %x0, ptr %x1, i64 %stride, i64 %tiles, ptr %to,
    ptr %near, i64 %ahead) {{
begin:
  call void @llvm.x86.tilezero(i8 0)
  call void @llvm.x86.tilezero(i8 1)
  br label %step
step:
  %k = phi i64 [0, %begin], [%k_next, %asked]
  %w_bytes = mul i64 %k, {2 * TILE_INPUTS}
  %x_bytes = mul i64 %k, {2 * TILE_INPUTS * TILE_ROWS}
  %w_here = getelementptr i8, ptr %w, i64 %w_bytes
  %x0_here = getelementptr i8, ptr %x0, i64 %x_bytes
  %x1_here = getelementptr i8, ptr %x1, i64 %x_bytes
  call void @llvm.x86.tileloadd64(i8 5, ptr %w_here, i64 %stride)
  call void @llvm.x86.tileloadd64(i8 4, ptr %x0_here, i64 64)
  call void @llvm.x86.tdpbf16ps(i8 0, i8 5, i8 4)
  call void @llvm.x86.tileloadd64(i8 4, ptr %x1_here, i64 64)
  call void @llvm.x86.tdpbf16ps(i8 1, i8 5, i8 4)
  %some = icmp sgt i64 %ahead, 0
  br i1 %some, label %ask_begin, label %asked
ask_begin:
  %near_here = getelementptr i8, ptr %near, i64 %w_bytes
  br label %ask
ask:
  %r = phi i64 [0, %ask_begin], [%r_next, %ask]
  %r_bytes = mul i64 %r, %stride
  %line = getelementptr i8, ptr %near_here, i64 %r_bytes
  call void @llvm.prefetch.p0(ptr %line, i32 0, i32 2, i32 1)
  %r_next = add i64 %r, 1
  %r_more = icmp slt i64 %r_next, %ahead
  br i1 %r_more, label %ask, label %asked
asked:
  %k_next = add i64 %k, 1
  %more = icmp slt i64 %k_next, %tiles
  br i1 %more, label %step, label %done
done:
  %to1 = getelementptr i8, ptr %to, i64 {SUMS_BYTES}
  call void @llvm.x86.tilestored64(i8 0, ptr %to, i64 64)
  call void @llvm.x86.tilestored64(i8 1, ptr %to1, i64 64)
  ret void
}}
"""


def _summing() -> str:
    """Write how a later piece is added to the sums, and the last one gives two tiles of results."""
    lines = [
        "define internal void @added(ptr %new, ptr %sums) {",
        "begin:",
        "  br label %step",
        "step:",
        "  %i = phi i64 [0, %begin], [%i_next, %step]",
        *_loaded("new", f"{_FLOATS}", "%i"),
        *_loaded("sums", f"{_FLOATS}", "%i"),
        f"  %sum = fadd {_FLOATS} %new_value, %sums_value",
        f"  store {_FLOATS} %sum, ptr %sums_here, align 64",
        *_until(2 * TILE_ROWS),
    ]
    for name, more in (("rounded", False), ("summed", True)):
        lines += [
            f"define internal void @{name}(ptr %new, ptr %sums, ptr %y, i64 %stride) {{",
            "begin:",
            "  br label %step",
            "step:",
            "  %i = phi i64 [0, %begin], [%i_next, %step]",
            f"  %rows = mul i64 %i, {TILE_ROWS}",
            "  %skipped = mul i64 %rows, %stride",
            "  %out = getelementptr i8, ptr %y, i64 %skipped",
            *_tile(more),
            *_until(2),
        ]
    return "\n".join(lines)


def _tile(more: bool) -> list[str]:
    """Write how a tile of sums `[outputs, rows]` becomes rows of bfloat16."""
    lines = []
    for i in range(TILE_ROWS):
        lines += [
            f"  %at{i} = add i64 %rows, {i}",
            *_loaded("new", _FLOATS, f"%at{i}", str(i)),
        ]
        value = f"%new_value{i}"
        if more:
            lines += [
                *_loaded("sums", _FLOATS, f"%at{i}", str(i)),
                f"  %sum{i} = fadd {_FLOATS} {value}, %sums_value{i}",
            ]
            value = f"%sum{i}"
        lines += [
            f"  %short{i} = call <16 x bfloat> @{_ROUND}({_FLOATS} {value})",
            f"  %bits{i} = bitcast <16 x bfloat> %short{i} to <16 x i16>",
            f"  %wide{i} = zext <16 x i16> %bits{i} to {_LANES}",
        ]
    for pair in range(TILE_ROWS // 2):
        lines += [
            f"  %high{pair} = shl {_LANES} %wide{2 * pair + 1}, splat (i32 16)",
            f"  %p{pair} = or {_LANES} %high{pair}, %wide{2 * pair}",
        ]
    # pairs of outputs are turned in squares of 8: each vector then has two rows
    lines += squares_turned("%p", TILE_ROWS // 2)
    for row in range(TILE_ROWS):
        begin, number = row // 8 * 8, row % 8
        places = ", ".join(f"i32 {begin + place}" for place in range(8))
        value = f"{square('%p', TILE_ROWS // 2)}{number}"
        lines += [
            f"  %row{row} = shufflevector {_LANES} {value}, {_LANES} poison, <8 x i32> <{places}>",
            f"  %row_bytes{row} = mul i64 %stride, {row}",
            f"  %out{row} = getelementptr i8, ptr %out, i64 %row_bytes{row}",
            f"  store <8 x i32> %row{row}, ptr %out{row}, align 2",
        ]
    return lines


def _loaded(name: str, kind: str, at: str, number: str = "") -> list[str]:
    return [
        f"  %{name}_here{number} = getelementptr {kind}, ptr %{name}, i64 {at}",
        f"  %{name}_value{number} = load {kind}, ptr %{name}_here{number}, align 64",
    ]


def _until(count: int) -> list[str]:
    return [
        "  %i_next = add i64 %i, 1",
        f"  %i_more = icmp slt i64 %i_next, {count}",
        "  br i1 %i_more, label %step, label %done",
        "done:",
        "  ret void",
        "}",
    ]
