"""Write the product of a bfloat16 weight and many rows in LLVM assembly, for AMX.

oneDNN cuts the inputs of such a product into pieces: it adds up a piece in float32 from zero, tile
by tile, and then adds the sums of the pieces one after the other. This does the same in the same
order, so the bits are the same; how long a piece is, is told at each call. The weight is taken as
it lies in memory, each part of it once, and what comes next is asked for meanwhile.

Two sums, a tile of the weight and one of rows are all the tiles that are used. More would need
fewer loads, and be as fast alone; but where another thread of the core uses tiles too, as another
guest of the machine may, products that use all eight take four times as long, and these twice.
"""

from __future__ import annotations

from worker.model.amx_rows import square, squares_turned
from worker.model.amx_text import DECLARED, configuration

# What one tile holds: rows or outputs, and inputs.
TILE_ROWS, TILE_INPUTS = 16, 32
# Rows that go through a tile of the weight together, and a tile of sums in bytes.
ROWS_TOGETHER, SUMS_BYTES = 2 * TILE_ROWS, 1024
# Tiles of outputs for which a piece of the rows stays near.
BLOCK = 8
# Of the processor beside those that a product of few rows needs, by Linux's name.
FEATURE = "avx512_bf16"
TABLE = ("w", "x", "pairs", "sums", "y", "rows", "outputs", "inputs", "twins", "piece", "ahead")
_POINTERS = TABLE[:5]
_LANES = "<16 x i32>"
_FLOATS = "<16 x float>"

_ROUND = "llvm.x86.avx512bf16.cvtneps2bf16.512"
_DECLARED = f"declare <16 x bfloat> @{_ROUND}(<16 x float>)"
_TEAM = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""


def module_text(threads: int) -> str:
    """Return a function `wide(table)`, which divides the outputs among threads.

    The table holds, as 64-bit numbers by the names of `TABLE`: addresses of the weight `[outputs,
    inputs]`, of the rows `[rows, inputs]`, of memory to put `ROWS_TOGETHER * twins` rows in order,
    of memory for sums (`BLOCK * twins` times two tiles for each thread) and of the result
    `[ROWS_TOGETHER * twins, outputs]`; the rows; the tiles of outputs and of inputs; pairs of tiles
    of rows; tiles of inputs in a piece; and how many rows of the weight are asked for at a time.
    Addresses but for those of `w`, `x` and `y` are multiples of 64.
    """
    parts = [DECLARED, _DECLARED, configuration(TILE_ROWS), _pairing(), _ALL_PAIRED]
    parts += [_PIECE, _summing(), _SHARE]
    parts += [_TEAM, _in_team(threads)] if threads > 1 else [_alone()]
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
    lines += ["  %groups = mul i64 %twins, 2", *_own_part("%groups")]
    lines += [f"  call void @all_paired({_ROWS}, i64 %from, i64 %to)", "  ret void", "}"]
    lines += ["define internal void @team_outputs(ptr %table) {", *_read("table")]
    given = _GIVEN.replace("%sums", "%own_sums")
    lines += [
        *_own_part("%outputs"),
        f"  %each = mul i64 %twins, {BLOCK * 2 * SUMS_BYTES}",
        "  %skipped = mul i64 %own, %each",
        "  %own_sums = getelementptr i8, ptr %sums, i64 %skipped",
        f"  call void @share({given}, i64 %from, i64 %to, {_SIZES})",
        *("  ret void", "}"),
    ]
    return "\n".join(lines)


def _own_part(count: str) -> list[str]:
    return [
        "  %own32 = call i32 @omp_get_thread_num()",
        "  %all32 = call i32 @omp_get_num_threads()",
        "  %own = sext i32 %own32 to i64",
        "  %all = sext i32 %all32 to i64",
        "  %after = add i64 %own, 1",
        f"  %b = mul i64 %own, {count}",
        f"  %e = mul i64 %after, {count}",
        "  %from = sdiv i64 %b, %all",
        "  %to = sdiv i64 %e, %all",
    ]


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

# Two tiles of sums of a piece; `near` is what to ask for, `ahead` rows of it for each tile.
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
