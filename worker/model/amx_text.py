"""Write the product of a bfloat16 weight and one row in LLVM assembly, for processors with AMX.

It does what oneDNN's kernel does for `weight @ row`, in the same order, so the bits are the same: a
tile of 16 outputs by 32 inputs at a time, from the first input to the last, added up in float32 by
`tdpbf16ps` and rounded to nearest even. The weight is taken as it lies in memory. oneDNN's kernel
reads it at 60 to 90 % of the speed of this one, and takes longer to start.
"""

from __future__ import annotations

from collections.abc import Sequence

# What one tile holds.
OUTPUTS, INPUTS = 16, 32
# Tiles of outputs that go through the inputs together.
_TOGETHER = 2
# Of the processor, by Linux's names; LLVM's have "-".
FEATURES = ("amx_tile", "amx_bf16", "avx512f", "avx512bw", "avx512vl")

_GIVEN = "ptr %w, ptr %x, ptr %y, i64 %from, i64 %to"
_DECLARED = """
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
"""
_TEAM = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""


def name_of(outputs: int, inputs: int) -> str:
    """Return the name of the function for weights of a shape."""
    return f"product_{outputs}_{inputs}"


def module_text(shapes: Sequence[tuple[int, int]], threads: int) -> str:
    """Return a function `(table)` for each shape, which divides the outputs among threads.

    The table holds the addresses of the weight `[outputs, inputs]`, the row and the result.
    `outputs` is a multiple of 32, `inputs` of 32.
    """
    parts = [_DECLARED, _TEAM * (threads > 1), _configuration()]
    for outputs, inputs in shapes:
        parts += [_share(outputs, inputs), _whole(outputs, inputs, threads)]
    return "\n".join(parts)


def _configuration() -> str:
    """Write the forms of the tiles: 0 to 3 sums, 4 the row, 5 to 7 weights."""
    text = bytearray(64)
    text[0] = 1
    for tile in range(8):
        width = 4 if tile < 5 else 64
        text[16 + 2 * tile : 18 + 2 * tile] = width.to_bytes(2, "little")
        text[48 + tile] = 16
    numbers = ", ".join(f"i8 {number}" for number in text)
    return f"@tiles = private constant [64 x i8] [{numbers}], align 64"


def _share(outputs: int, inputs: int) -> str:
    """Write the products of some blocks of outputs."""
    stride, blocks = 2 * inputs, range(_TOGETHER)
    lines = [
        f"define internal void @share_{name_of(outputs, inputs)}({_GIVEN}) {{",
        "begin:",
        f"  %sums = alloca [{OUTPUTS * _TOGETHER} x float], align 64",
        "  call void @llvm.x86.ldtilecfg(ptr @tiles)",
        "  br label %test",
        "test:",
        "  %block = phi i64 [%from, %begin], [%next, %end]",
        "  %some = icmp slt i64 %block, %to",
        "  br i1 %some, label %block_begin, label %done",
        "block_begin:",
        f"  %skipped = mul i64 %block, {stride * OUTPUTS * _TOGETHER}",
        "  %weights = getelementptr i8, ptr %w, i64 %skipped",
    ]
    for i in blocks:
        lines += [
            f"  call void @llvm.x86.tilezero(i8 {i})",
            f"  %rows{i} = getelementptr i8, ptr %weights, i64 {i * OUTPUTS * stride}",
        ]
    lines += [
        "  br label %step",
        "step:",
        "  %k = phi i64 [0, %block_begin], [%k_next, %step]",
        f"  %k_bytes = mul i64 %k, {2 * INPUTS}",
        "  %x_here = getelementptr i8, ptr %x, i64 %k_bytes",
        "  call void @llvm.x86.tileloadd64(i8 4, ptr %x_here, i64 4)",
    ]
    for i in blocks:
        lines += [
            f"  %here{i} = getelementptr i8, ptr %rows{i}, i64 %k_bytes",
            f"  call void @llvm.x86.tileloadd64(i8 {5 + i}, ptr %here{i}, i64 {stride})",
            f"  call void @llvm.x86.tdpbf16ps(i8 {i}, i8 {5 + i}, i8 4)",
        ]
    lines += [
        "  %k_next = add i64 %k, 1",
        f"  %more = icmp slt i64 %k_next, {inputs // INPUTS}",
        "  br i1 %more, label %step, label %end",
        "end:",
        f"  %place = mul i64 %block, {2 * OUTPUTS * _TOGETHER}",
        "  %out = getelementptr i8, ptr %y, i64 %place",
    ]
    for i in blocks:
        lines += [
            f"  %into{i} = getelementptr float, ptr %sums, i64 {i * OUTPUTS}",
            f"  call void @llvm.x86.tilestored64(i8 {i}, ptr %into{i}, i64 4)",
            f"  %v{i} = load <16 x float>, ptr %into{i}, align 64",
            *_rounded(i),
            f"  %to{i} = getelementptr i8, ptr %out, i64 {2 * OUTPUTS * i}",
            f"  store <16 x i16> %short{i}, ptr %to{i}, align 2",
        ]
    lines += [
        "  %next = add i64 %block, 1",
        "  br label %test",
        "done:",
        "  call void @llvm.x86.tilerelease()",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def _rounded(i: int) -> list[str]:
    """Write how 16 sums are rounded to bfloat16, to nearest even; what is no number stays none."""
    kind = "<16 x i32>"
    return [
        f"  %bits{i} = bitcast <16 x float> %v{i} to {kind}",
        f"  %high{i} = lshr {kind} %bits{i}, splat (i32 16)",
        f"  %odd{i} = and {kind} %high{i}, splat (i32 1)",
        f"  %half{i} = add {kind} %odd{i}, splat (i32 32767)",
        f"  %up{i} = add {kind} %bits{i}, %half{i}",
        f"  %top{i} = lshr {kind} %up{i}, splat (i32 16)",
        f"  %none{i} = fcmp uno <16 x float> %v{i}, %v{i}",
        f"  %quiet{i} = or {kind} %high{i}, splat (i32 64)",
        f"  %right{i} = select <16 x i1> %none{i}, {kind} %quiet{i}, {kind} %top{i}",
        f"  %short{i} = trunc {kind} %right{i} to <16 x i16>",
    ]


def _whole(outputs: int, inputs: int, threads: int) -> str:
    name, blocks = name_of(outputs, inputs), outputs // (OUTPUTS * _TOGETHER)
    read = "\n".join(
        f"  %{what}_at = getelementptr i64, ptr %table, i64 {i}\n"
        f"  %{what} = load ptr, ptr %{what}_at"
        for i, what in enumerate("wxy")
    )
    if threads == 1:
        return f"""
define void @{name}(ptr %table) {{
{read}
  call void @share_{name}(ptr %w, ptr %x, ptr %y, i64 0, i64 {blocks})
  ret void
}}
"""
    return f"""
define internal void @team_{name}(ptr %table) {{
{read}
  %own32 = call i32 @omp_get_thread_num()
  %all32 = call i32 @omp_get_num_threads()
  %own = sext i32 %own32 to i64
  %all = sext i32 %all32 to i64
  %after = add i64 %own, 1
  %b = mul i64 %own, {blocks}
  %e = mul i64 %after, {blocks}
  %from = sdiv i64 %b, %all
  %to = sdiv i64 %e, %all
  call void @share_{name}(ptr %w, ptr %x, ptr %y, i64 %from, i64 %to)
  ret void
}}
define void @{name}(ptr %table) {{
  call void @GOMP_parallel(ptr @team_{name}, ptr %table, i32 {threads}, i32 0)
  ret void
}}
"""
