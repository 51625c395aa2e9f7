"""Write the attention of one position in LLVM assembly, with the bits of torch's for bfloat16.

Torch (`FlashAttentionKernel.cpp`) takes 512 positions at a time, and for each head calls a matrix
product of MKL for the scores and another one for the sum of values; to start those takes longer
than the work of a few hundred positions. Here they are done in the order of MKL's kernels for one
row, which are made of `vdpbf16ps`, a pair of numbers to a lane: scores are summed up over the
lanes, as a tree; values over eight positions, and those sums one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.model.attend_floats import (
    BF16_HALVES,
    DOT,
    PAIRS,
    dot,
    float_text,
    places_text,
    rounded,
    same_float,
)
from worker.model.attend_values import OCTET, VECTOR_BYTES, from_whole, in_order, values
from worker.model.attend_weights import weights
from worker.model.lane_text import I32, LANES, Body, F

# Positions that torch takes at a time.
BLOCK = 512
MOST_HEAD_DIM = 256
# The positions of a block, and as many again as are worked on at a time.
_ROOM = BLOCK + LANES
# Of the processor, by Linux's names.
FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16")
DECLARATIONS = f"""
declare {F} {DOT}({F}, {PAIRS}, {PAIRS})
declare {F} @llvm.fma.v{LANES}f32({F}, {F}, {F})
declare {F} @llvm.floor.v{LANES}f32({F})
declare {I32} @llvm.x86.avx512.mask.cvttps2dq.512({F}, {I32}, i16, i32)
declare float @llvm.fma.f32(float, float, float)
declare i64 @llvm.smin.i64(i64, i64)
declare float @expf(float)
@zeros = private constant [{MOST_HEAD_DIM} x i16] zeroinitializer, align 64
"""


@dataclass(frozen=True, order=True, slots=True)
class AttendShape:
    """Of one attention.

    Attributes:
        heads: of the query; a multiple of `kv_heads`.
        kv_heads: of keys and values.
        head_dim: a multiple of 32, at most 256.
        scale: of the scores, as a float32.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float

    @property
    def shared(self) -> int:
        """How many heads of the query one head of keys has."""
        return self.heads // self.kv_heads

    @property
    def row_bytes(self) -> int:
        """Bytes of one head of one position."""
        return 2 * self.head_dim


def group(shape: AttendShape) -> str:
    """Write `group(q, q_bytes, k, v, end, out, scratch)`: what one head of keys does.

    `q` has `shared` heads `q_bytes` apart; `k` and `v` are `[end, head_dim]`, `out` is
    `[shared, head_dim]`; there are `scratch_bytes` of scratch.
    """
    b = Body()
    b.do("entry:")
    for name, (begin, _) in _parts(shape).items():
        b.do(f"%{name} = getelementptr i8, ptr %scratch, i64 {begin}")
    for head in range(shape.shared):
        b.do(f"store float {float_text(float('-inf'))}, ptr {b.at('%most', 4 * head)}")
        b.do(f"store float 0.0, ptr {b.at('%total', 4 * head)}")
    for place in range(0, shape.shared * shape.head_dim, LANES):
        b.do(f"store {F} zeroinitializer, ptr {b.at('%sums', 4 * place)}, align 64")
    b.do("br label %blocks")
    b.do("blocks: %n = phi i64 [0, %entry], [%n_next, %block_end]")
    b.do("%left = sub i64 %end, %n")
    b.do(f"%count = call i64 @llvm.smin.i64(i64 %left, i64 {BLOCK})")
    b.do("%is_first = icmp eq i64 %n, 0")
    b.do(f"%skipped = mul i64 %n, {shape.row_bytes}")
    b.do("%kb = getelementptr i8, ptr %k, i64 %skipped")
    b.do("%vb = getelementptr i8, ptr %v, i64 %skipped")
    _tail(b, shape, "k", LANES, "blocks")
    _tail(b, shape, "v", OCTET, "k_tailed")
    _scores(b, shape, 4 * _ROOM)
    weights(b, shape.shared, shape.head_dim, 4 * _ROOM, 2 * _ROOM)
    values(b, shape.shared, shape.head_dim, 2 * _ROOM)
    b.do("block_end:")
    b.do(f"%n_next = add i64 %n, {BLOCK}")
    b.do("%more_blocks = icmp slt i64 %n_next, %end")
    b.do("br i1 %more_blocks, label %blocks, label %results")
    b.do("results: %r = phi i64 [0, %block_end], [%r_next, %results]")
    total = b.let(f"load float, ptr {b.at('%total', b.let('mul i64 %r, 4'))}")
    is_none = b.let(f"fcmp oeq float {total}, 0.0")
    total = b.let(f"select i1 {is_none}, float 1.0, float {total}")
    factor = b.spread("float", b.let(f"fdiv float 1.0, {total}"))
    sums = b.at("%sums", b.let(f"mul i64 %r, {4 * shape.head_dim}"))
    out = b.at("%out", b.let(f"mul i64 %r, {shape.row_bytes}"))
    for place in range(0, shape.head_dim, 2 * LANES):
        for half, value in enumerate(in_order(b, b.at(sums, 4 * place))):
            result = rounded(b, b.let(f"fmul {F} {value}, {factor}"))
            to = b.at(out, 2 * (place + half * LANES))
            b.do(f"store {BF16_HALVES} {result}, ptr {to}, align 2")
    b.do("%r_next = add i64 %r, 1")
    b.do(f"%more_results = icmp slt i64 %r_next, {shape.shared}")
    b.do("br i1 %more_results, label %results, label %done")
    b.do("done:")
    b.do("ret void")
    given = "ptr %q, i64 %q_bytes, ptr %k, ptr %v, i64 %end, ptr %out, ptr %scratch"
    return b.function("group", given)


def scratch_bytes(shape: AttendShape) -> int:
    """Return how much memory one thread needs beside."""
    return sum(size for _, size in _parts(shape).values())


def _parts(shape: AttendShape) -> dict[str, tuple[int, int]]:
    """Name the parts of the scratch: where each begins, and how large it is.

    It may be 147 KB, which is too much for the stack of a thread that a user made small.
    """
    heads, dim = shape.shared, shape.head_dim
    sizes = {
        "scores": 4 * heads * _ROOM,
        "weights": 2 * heads * _ROOM,
        "sums": 4 * heads * dim,
        "most": 4 * heads,
        "total": 4 * heads,
        "k_tail": 2 * LANES * dim,
        "v_tail": 2 * OCTET * dim,
    }
    found, begin = {}, 0
    for name, size in sizes.items():
        whole = -(-size // VECTOR_BYTES) * VECTOR_BYTES
        found[name] = (begin, whole)
        begin += whole
    return found


def _pairs(b: Body, address: str) -> str:
    return b.let(f"load {PAIRS}, ptr {address}, align 2")


def _tail(b: Body, shape: AttendShape, what: str, size: int, before: str) -> None:
    """Copy what is left of a block after whole sets of `size` positions, and zeros after it."""
    b.do(f"%{what}_whole = and i64 %count, {-size}")
    b.do(f"br label %{what}_copy")
    b.do(f"{what}_copy: %{what}_i = phi i64 [0, %{before}], [%{what}_i_next, %{what}_copy]")
    here = b.let(f"add i64 %{what}_whole, %{what}_i")
    row = b.at(f"%{what}b", b.let(f"mul i64 {here}, {shape.row_bytes}"))
    is_one = b.let(f"icmp slt i64 {here}, %count")
    source = b.let(f"select i1 {is_one}, ptr {row}, ptr @zeros")
    into = b.at(f"%{what}_tail", b.let(f"mul i64 %{what}_i, {shape.row_bytes}"))
    for offset in range(0, shape.row_bytes, VECTOR_BYTES):
        value = b.let(f"load {PAIRS}, ptr {b.at(source, offset)}, align 2")
        b.do(f"store {PAIRS} {value}, ptr {b.at(into, offset)}, align 64")
    b.do(f"%{what}_i_next = add i64 %{what}_i, 1")
    b.do(f"%{what}_more = icmp slt i64 %{what}_i_next, {size}")
    b.do(f"br i1 %{what}_more, label %{what}_copy, label %{what}_tailed")
    b.do(f"{what}_tailed:")


def _scores(b: Body, shape: AttendShape, stride: int) -> None:
    """Fill `%scores`, 16 positions at a time."""
    b.do("br label %score")
    b.do("score: %p = phi i64 [0, %v_tailed], [%p_next, %score_end]")
    base = from_whole(b, "k", "%p", shape.row_bytes)
    into = b.at("%scores", b.let("mul i64 %p, 4"))
    b.do("br label %score_head")
    b.do("score_head: %sh = phi i64 [0, %score], [%sh_next, %score_head]")
    query = b.at("%q", b.let("mul i64 %q_bytes, %sh"))
    sums = ["zeroinitializer"] * LANES
    for offset in range(0, shape.row_bytes, VECTOR_BYTES):
        by = _pairs(b, b.at(query, offset))
        rows = (b.at(base, i * shape.row_bytes + offset) for i in range(LANES))
        sums = [dot(b, total, _pairs(b, row), by) for total, row in zip(sums, rows, strict=True)]
    scaled = b.let(f"fmul {F} {_folded(b, sums)}, {same_float(shape.scale)}")
    b.do(f"store {F} {scaled}, ptr {b.at(into, b.let(f'mul i64 %sh, {stride}'))}, align 64")
    b.do("%sh_next = add i64 %sh, 1")
    b.do(f"%more_score_heads = icmp slt i64 %sh_next, {shape.shared}")
    b.do("br i1 %more_score_heads, label %score_head, label %score_end")
    b.do("score_end:")
    b.do(f"%p_next = add i64 %p, {LANES}")
    b.do("%more_scores = icmp slt i64 %p_next, %count")
    b.do("br i1 %more_scores, label %score, label %scored")
    b.do("scored:")


def _folded(b: Body, sums: list[str]) -> str:
    """Add up each of 16 vectors: its halves, then neighbours, and those sums likewise."""
    half = LANES // 2
    firsts = [*range(half), *range(LANES, LANES + half)]
    low, high = firsts, [place + half for place in firsts]
    while len(sums) > 1:
        pairs = zip(sums[::2], sums[1::2], strict=True)
        sums = [_joined(b, one, other, low, high) for one, other in pairs]
        low = list(range(0, 2 * LANES, 2))
        high = list(range(1, 2 * LANES, 2))
    return sums[0]


def _joined(b: Body, one: str, other: str, low: list[int], high: list[int]) -> str:
    parts = [
        b.let(f"shufflevector {F} {one}, {F} {other}, {places_text(places)}")
        for places in (low, high)
    ]
    return b.let(f"fadd {F} {parts[0]}, {parts[1]}")
