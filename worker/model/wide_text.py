"""Write the product of a bfloat16 weight and many rows in LLVM assembly, for AMX.

oneDNN cuts the inputs of such a product into pieces: it adds up a piece in float32 from zero, tile
by tile, and then adds the sums of the pieces one after the other. This does the same in the same
order, so the bits are the same; how long a piece is, is told at each call. The weight is taken as
it lies in memory, each part of it once, and what comes next is asked for meanwhile.

Two sums, a tile of the weight and one of rows are all the tiles that are used. More would need
fewer loads, and be as fast in most hours; but on a rented machine, where others may use the same
core, products that use all eight took four times as long in some hours, and these twice.
"""

from __future__ import annotations

from worker.model import team_text
from worker.model.amx_text import DECLARED, configuration
from worker.model.wide_rows import all_paired
from worker.model.wide_tiles import SUMS_BYTES, TILE_INPUTS, TILE_ROWS, tiles_text

# Rows that go through a tile of the weight together.
ROWS_TOGETHER = 2 * TILE_ROWS
# Tiles of outputs for which a piece of the rows stays near.
BLOCK = 8
# Of the processor beside those that a product of few rows needs, by Linux's name.
FEATURE = "avx512_bf16"
TABLE = ("w", "x", "pairs", "sums", "y", "rows", "outputs", "inputs", "twins", "piece", "ahead")
_POINTERS = TABLE[:5]


def module_text(threads: int) -> str:
    """Return a function `wide(table)`, which divides the outputs among threads.

    The table holds, as 64-bit numbers by the names of `TABLE`: addresses of the weight `[outputs,
    inputs]`, of the rows `[rows, inputs]`, of memory to put `ROWS_TOGETHER * twins` rows in order,
    of memory for sums (`BLOCK * twins` times two tiles for each thread) and of the result
    `[ROWS_TOGETHER * twins, outputs]`; the rows; the tiles of outputs and of inputs; pairs of tiles
    of rows; tiles of inputs in a piece; and how many rows of the weight are asked for at a time.
    Addresses but for those of `w`, `x` and `y` are multiples of 64.
    """
    parts = [DECLARED, configuration(TILE_ROWS), all_paired(), tiles_text(), _SHARE]
    parts += [team_text.DECLARED, _in_team(threads)] if threads > 1 else [_alone()]
    return "\n".join(parts)


def _read(table: str) -> list[str]:
    lines = []
    for i, name in enumerate(TABLE):
        kind = "ptr" if name in _POINTERS else "i64"
        lines += [
            f"  %{name}_at = getelementptr i64, ptr %{table}, i64 {i}",
            f"  %{name} = load {kind}, ptr %{name}_at",
        ]
    return lines


_GIVEN = "ptr %w, ptr %pairs, ptr %sums, ptr %y"
_SIZES = "i64 %outputs, i64 %inputs, i64 %twins, i64 %piece, i64 %ahead"
_ROWS = "ptr %x, ptr %pairs, i64 %rows, i64 %inputs"


def _alone() -> str:
    lines = [
        *("define void @wide(ptr %table) {", *_read("table")),
        "  %groups = mul i64 %twins, 2",
        f"  call void @all_paired({_ROWS}, i64 0, i64 %groups)",
        f"  call void @share({_GIVEN}, i64 0, i64 %outputs, {_SIZES})",
        *("  ret void", "}"),
    ]
    return "\n".join(lines)


def _in_team(threads: int) -> str:
    """Write the same for a team: all rows are in order before the first product begins."""
    lines = ["define void @wide(ptr %table) {"]
    lines += [
        f"  call void @GOMP_parallel(ptr @{part}, ptr %table, i32 {threads}, i32 0)"
        for part in ("team_rows", "team_outputs")
    ]
    lines += ["  ret void", "}", "define internal void @team_rows(ptr %table) {", *_read("table")]
    lines += ["  %groups = mul i64 %twins, 2", team_text.own_part("%groups")]
    lines += [f"  call void @all_paired({_ROWS}, i64 %from, i64 %to)", "  ret void", "}"]
    lines += ["define internal void @team_outputs(ptr %table) {", *_read("table")]
    given = _GIVEN.replace("%sums", "%own_sums")
    lines += [
        team_text.own_part("%outputs"),
        f"  %each = mul i64 %twins, {BLOCK * 2 * SUMS_BYTES}",
        "  %skipped = mul i64 %own, %each",
        "  %own_sums = getelementptr i8, ptr %sums, i64 %skipped",
        f"  call void @share({given}, i64 %from, i64 %to, {_SIZES})",
        *("  ret void", "}"),
    ]
    return "\n".join(lines)


# For a block of outputs: piece by piece of the inputs, two tiles of rows at a time.
_SHARE = f"""
define internal void @share({_GIVEN}, i64 %from, i64 %to, {_SIZES}) {{
begin:
  %new = alloca [{2 * SUMS_BYTES} x i8], align 64
  call void @llvm.x86.ldtilecfg(ptr @tiles_{TILE_ROWS})
  %w_stride = mul i64 %inputs, {2 * TILE_INPUTS}
  %y_stride = mul i64 %outputs, {2 * TILE_ROWS}
  %x_size = mul i64 %inputs, {2 * TILE_INPUTS * TILE_ROWS}
  br label %block_test
block_test:
  %block = phi i64 [%from, %begin], [%block_end, %piece_end]
  %is_block = icmp slt i64 %block, %to
  br i1 %is_block, label %block_begin, label %done
block_begin:
  %block_full = add i64 %block, {BLOCK}
  %is_full = icmp slt i64 %block_full, %to
  %block_end = select i1 %is_full, i64 %block_full, i64 %to
  br label %piece_begin
piece_begin:
  %k = phi i64 [0, %block_begin], [%k_end, %piece_end]
  %k_full = add i64 %k, %piece
  %is_whole = icmp slt i64 %k_full, %inputs
  %k_end = select i1 %is_whole, i64 %k_full, i64 %inputs
  %tiles = sub i64 %k_end, %k
  %is_first = icmp eq i64 %k, 0
  %is_last = icmp eq i64 %k_end, %inputs
  %near_block = select i1 %is_last, i64 %block_end, i64 %block
  %near_k = select i1 %is_last, i64 0, i64 %k_end
  %is_near = icmp slt i64 %near_block, %to
  %asked = select i1 %is_near, i64 %ahead, i64 0
  br label %twin_begin
twin_begin:
  %twin = phi i64 [0, %piece_begin], [%twin_next, %twin_end]
  %group = mul i64 %twin, 2
  %group_bytes = mul i64 %group, %x_size
  %x_k = mul i64 %k, {2 * TILE_INPUTS * TILE_ROWS}
  %x_skipped = add i64 %group_bytes, %x_k
  %x0 = getelementptr i8, ptr %pairs, i64 %x_skipped
  %x1 = getelementptr i8, ptr %x0, i64 %x_size
  %asked_row = mul i64 %twin, %asked
  br label %output
output:
  %o = phi i64 [%block, %twin_begin], [%o_next, %output_end]
  %w_row = mul i64 %o, {TILE_ROWS}
  %w_rows = mul i64 %w_row, %w_stride
  %w_k = mul i64 %k, {2 * TILE_INPUTS}
  %w_skipped = add i64 %w_rows, %w_k
  %w_here = getelementptr i8, ptr %w, i64 %w_skipped
  %within = sub i64 %o, %block
  %near_o = add i64 %near_block, %within
  %near_tile = mul i64 %near_o, {TILE_ROWS}
  %near_row = add i64 %near_tile, %asked_row
  %near_rows = mul i64 %near_row, %w_stride
  %near_bytes = mul i64 %near_k, {2 * TILE_INPUTS}
  %near_skipped = add i64 %near_rows, %near_bytes
  %near = getelementptr i8, ptr %w, i64 %near_skipped
  %sum_row = mul i64 %twin, {BLOCK}
  %sum = add i64 %sum_row, %within
  %sum_skipped = mul i64 %sum, {2 * SUMS_BYTES}
  %sums_here = getelementptr i8, ptr %sums, i64 %sum_skipped
  %y_row = mul i64 %twin, {ROWS_TOGETHER}
  %y_rows = mul i64 %y_row, %y_stride
  %y_o = mul i64 %o, {2 * TILE_ROWS}
  %y_skipped = add i64 %y_rows, %y_o
  %y_here = getelementptr i8, ptr %y, i64 %y_skipped
  %is_stored = xor i1 %is_last, true
  %is_begun = and i1 %is_first, %is_stored
  %into = select i1 %is_begun, ptr %sums_here, ptr %new
  call void @piece(ptr %w_here, ptr %x0, ptr %x1, i64 %w_stride, i64 %tiles, ptr %into,
      ptr %near, i64 %asked)
  br i1 %is_begun, label %output_end, label %not_begun
not_begun:
  br i1 %is_last, label %last, label %later
later:
  call void @added(ptr %new, ptr %sums_here)
  br label %output_end
last:
  br i1 %is_first, label %only, label %final
only:
  call void @rounded(ptr %new, ptr %sums_here, ptr %y_here, i64 %y_stride)
  br label %output_end
final:
  call void @summed(ptr %new, ptr %sums_here, ptr %y_here, i64 %y_stride)
  br label %output_end
output_end:
  %o_next = add i64 %o, 1
  %o_more = icmp slt i64 %o_next, %block_end
  br i1 %o_more, label %output, label %twin_end
twin_end:
  %twin_next = add i64 %twin, 1
  %twin_more = icmp slt i64 %twin_next, %twins
  br i1 %twin_more, label %twin_begin, label %piece_end
piece_end:
  br i1 %is_last, label %block_test, label %piece_begin
done:
  call void @llvm.x86.tilerelease()
  ret void
}}
"""
