"""Write the product of a bfloat16 weight and up to 16 rows in LLVM assembly, for AMX.

It does what oneDNN's kernel does for `weight @ rows.T`, in the same order, so the bits are the
same: a tile of 16 outputs by 32 inputs at a time, from the first input to the last, added up in
float32 by `tdpbf16ps` and rounded to nearest even. The weight is taken as it lies in memory.
oneDNN's kernel reads it at 60 to 90 % of the speed of this one, and takes longer to start.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.model.amx_rows import by_row, square

# What one tile holds.
OUTPUTS, INPUTS = 16, 32
# Tiles of outputs that go through the inputs together.
_TOGETHER = 2
# Steps of inputs that the weights are asked for before they are needed; where others use the
# memory of a shared machine too, reading is up to a fifth faster for it.
_AHEAD = 2
# Of the processor, by Linux's names; LLVM's have "-".
FEATURES = ("amx_tile", "amx_bf16", "avx512f", "avx512bw", "avx512vl")

GIVEN = "ptr %w, ptr %x, ptr %y, i64 %from, i64 %to"

DECLARED = """
declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
"""


@dataclass(frozen=True, order=True, slots=True)
class ProductShape:
    """Of a weight `[outputs, inputs]`, both multiples of 32, by 1, 2, 4, 8 or 16 rows."""

    outputs: int
    inputs: int
    rows: int

    @property
    def blocks(self) -> int:
        """How many pieces it may be divided into."""
        return self.outputs // (OUTPUTS * _TOGETHER)

    @property
    def name(self) -> str:
        """Of its function."""
        return f"product_{self.outputs}_{self.inputs}_{self.rows}"


def configuration(rows: int) -> str:
    """Write the forms of the tiles: 0 to 3 sums, 4 the rows, 5 to 7 weights."""
    text = bytearray(64)
    text[0] = 1
    for tile in range(8):
        width = 4 * rows if tile < 5 else 64
        text[16 + 2 * tile : 18 + 2 * tile] = width.to_bytes(2, "little")
        text[48 + tile] = 16
    numbers = ", ".join(f"i8 {number}" for number in text)
    return f"@tiles_{rows} = private constant [64 x i8] [{numbers}], align 64"


def share(shape: ProductShape) -> str:
    """Write the products of some blocks of outputs."""
    stride, blocks, width = 2 * shape.inputs, range(_TOGETHER), 4 * shape.rows
    lines = [
        f"define internal void @share_{shape.name}({GIVEN}) {{",
        "begin:",
        f"  %sums = alloca [{OUTPUTS * _TOGETHER * shape.rows} x float], align 64",
        f"  call void @llvm.x86.ldtilecfg(ptr @tiles_{shape.rows})",
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
    steps = shape.inputs // INPUTS
    lines += [
        "  br label %step",
        "step:",
        "  %k = phi i64 [0, %block_begin], [%k_next, %step]",
        *_asked_for(stride, steps),
        f"  %k_bytes = mul i64 %k, {2 * INPUTS}",
        f"  %x_bytes = mul i64 %k, {2 * INPUTS * shape.rows}",
        "  %x_here = getelementptr i8, ptr %x, i64 %x_bytes",
        f"  call void @llvm.x86.tileloadd64(i8 4, ptr %x_here, i64 {width})",
    ]
    for i in blocks:
        lines += [
            f"  %here{i} = getelementptr i8, ptr %rows{i}, i64 %k_bytes",
            f"  call void @llvm.x86.tileloadd64(i8 {5 + i}, ptr %here{i}, i64 {stride})",
            f"  call void @llvm.x86.tdpbf16ps(i8 {i}, i8 {5 + i}, i8 4)",
        ]
    lines += [
        "  %k_next = add i64 %k, 1",
        f"  %more = icmp slt i64 %k_next, {shape.inputs // INPUTS}",
        "  br i1 %more, label %step, label %end",
        "end:",
        f"  %place = mul i64 %block, {2 * OUTPUTS * _TOGETHER}",
        "  %out = getelementptr i8, ptr %y, i64 %place",
    ]
    for i in blocks:
        sums, turned = f"%sums{i}", f"%s{i}_"
        lines += [
            f"  {sums} = getelementptr float, ptr %sums, i64 {i * OUTPUTS * shape.rows}",
            f"  call void @llvm.x86.tilestored64(i8 {i}, ptr {sums}, i64 {width})",
            *by_row(sums, shape.rows, turned),
        ]
        for row in range(shape.rows):
            value = f"{square(turned, shape.rows)}{row}"
            to = 2 * (shape.outputs * row + OUTPUTS * i)
            lines += [
                *_rounded(value),
                f"  {value}_to = getelementptr i8, ptr %out, i64 {to}",
                f"  store <16 x i16> {value}_short, ptr {value}_to, align 2",
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


def _asked_for(stride: int, steps: int) -> list[str]:
    """Write how weights are asked for that a later step takes, maybe one of the next block."""
    block_steps = stride * OUTPUTS * _TOGETHER // (2 * INPUTS)
    lines = [
        f"  %soon = add i64 %k, {min(_AHEAD, steps - 1)}",
        f"  %is_over = icmp sge i64 %soon, {steps}",
        f"  %beyond = add i64 %soon, {block_steps - steps}",
        "  %ahead = select i1 %is_over, i64 %beyond, i64 %soon",
        f"  %ahead_bytes = mul i64 %ahead, {2 * INPUTS}",
        "  %ahead_at = getelementptr i8, ptr %weights, i64 %ahead_bytes",
    ]
    for row in range(OUTPUTS * _TOGETHER):
        lines += [
            f"  %line{row} = getelementptr i8, ptr %ahead_at, i64 {row * stride}",
            f"  call void @llvm.prefetch.p0(ptr %line{row}, i32 0, i32 3, i32 1)",
        ]
    return lines


def _rounded(v: str) -> list[str]:
    """Write how 16 sums are rounded to bfloat16, to nearest even; what is no number stays none."""
    kind = "<16 x i32>"
    return [
        f"  {v}_sum = bitcast {kind} {v} to <16 x float>",
        f"  {v}_high = lshr {kind} {v}, splat (i32 16)",
        f"  {v}_odd = and {kind} {v}_high, splat (i32 1)",
        f"  {v}_half = add {kind} {v}_odd, splat (i32 32767)",
        f"  {v}_up = add {kind} {v}, {v}_half",
        f"  {v}_top = lshr {kind} {v}_up, splat (i32 16)",
        f"  {v}_none = fcmp uno <16 x float> {v}_sum, {v}_sum",
        f"  {v}_quiet = or {kind} {v}_high, splat (i32 64)",
        f"  {v}_right = select <16 x i1> {v}_none, {kind} {v}_quiet, {kind} {v}_top",
        f"  {v}_short = trunc {kind} {v}_right to <16 x i16>",
    ]
