"""Write in LLVM assembly how many rows are put into the order of tiles."""

from __future__ import annotations

from worker.model.amx_rows import square, squares_turned
from worker.model.wide_tiles import TILE_INPUTS, TILE_ROWS

_LANES = "<16 x i32>"


def all_paired() -> str:
    """Write `all_paired(x, into, rows, inputs, from, to)`: some groups of 16 rows.

    `x` is bfloat16 `[rows, TILE_INPUTS * inputs]`; each group becomes `[pairs of inputs, 16, 2]`.
    """
    return _pairing() + _ALL_PAIRED


def _pairing() -> str:
    """Write how 16 rows become `[pairs of inputs, 16, 2]`; after the last row it comes again."""
    lines = [
        "define internal void @paired(ptr %x, ptr %to, i64 %stride, i64 %last, i64 %count) {",
        "begin:",
        "  br label %step",
        "step:",
        "  %at = phi i64 [0, %begin], [%at_next, %step]",
        "  %from = getelementptr i32, ptr %x, i64 %at",
        f"  %into_at = mul i64 %at, {TILE_ROWS}",
        "  %into = getelementptr i32, ptr %to, i64 %into_at",
    ]
    for row in range(TILE_ROWS):
        lines += [
            f"  %is{row} = icmp slt i64 {row}, %last",
            f"  %row{row} = select i1 %is{row}, i64 {row}, i64 %last",
            f"  %skipped{row} = mul i64 %row{row}, %stride",
            f"  %p{row} = getelementptr i8, ptr %from, i64 %skipped{row}",
            f"  %x{row} = load {_LANES}, ptr %p{row}, align 2",
        ]
    lines += squares_turned("%x", TILE_ROWS)
    for pair in range(TILE_ROWS):
        lines += [
            f"  %q{pair} = getelementptr i32, ptr %into, i64 {pair * TILE_ROWS}",
            f"  store {_LANES} {square('%x', TILE_ROWS)}{pair}, ptr %q{pair}, align 64",
        ]
    lines += [
        f"  %at_next = add i64 %at, {TILE_ROWS}",
        "  %more = icmp slt i64 %at_next, %count",
        "  br i1 %more, label %step, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


_ALL_PAIRED = f"""
define internal void @all_paired(ptr %x, ptr %into, i64 %rows, i64 %inputs, i64 %from, i64 %to) {{
begin:
  %stride = mul i64 %inputs, {2 * TILE_INPUTS}
  %count = mul i64 %inputs, {TILE_INPUTS // 2}
  %size = mul i64 %inputs, {2 * TILE_INPUTS * TILE_ROWS}
  %last_row = sub i64 %rows, 1
  br label %group_test
group_test:
  %g = phi i64 [%from, %begin], [%g_next, %group]
  %is_group = icmp slt i64 %g, %to
  br i1 %is_group, label %group, label %done
group:
  %wanted = mul i64 %g, {TILE_ROWS}
  %is_row = icmp slt i64 %wanted, %rows
  %row = select i1 %is_row, i64 %wanted, i64 %last_row
  %last = sub i64 %last_row, %row
  %x_skipped = mul i64 %row, %stride
  %x_here = getelementptr i8, ptr %x, i64 %x_skipped
  %to_skipped = mul i64 %g, %size
  %to_here = getelementptr i8, ptr %into, i64 %to_skipped
  call void @paired(ptr %x_here, ptr %to_here, i64 %stride, i64 %last, i64 %count)
  %g_next = add i64 %g, 1
  br label %group_test
done:
  ret void
}}
"""
