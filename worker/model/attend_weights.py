"""Write in LLVM assembly how scores become weights: the softmax of torch's attention."""

from __future__ import annotations

from worker.model.attend_exp import exponential
from worker.model.attend_floats import BF16_HALVES, places_text, rounded, same_float
from worker.model.lane_text import I32, LANES, Body, F, same

_MINUS_INFINITY = "0xFFF0000000000000"
_FULL = -LANES
# The bits that torch gives to what is no number, of one bfloat16.
_NAN_HALF = 0x7FC0
# Places that change with each other while a vector is added up.
_STEPS = (8, 4, 2, 1)


def weights(b: Body, heads: int, head_dim: int, score_bytes: int, weight_bytes: int) -> None:
    """Fill `%weights` of each head, and zeros after them, from `%scores` of `%count` positions.

    `%most` and `%total` of each head are brought up to date, and its `%sums` are scaled to that.
    16 positions go together, and those after them one by one, with the C library's exponential.
    """
    b.do("br label %head")
    b.do("head: %h = phi i64 [0, %scored], [%h_next, %head_end]")
    b.do(f"%full = and i64 %count, {_FULL}")
    for name, base, size in (
        ("scores_h", "%scores", score_bytes),
        ("weights_h", "%weights", weight_bytes),
        ("most_h", "%most", 4),
        ("total_h", "%total", 4),
        ("sums_h", "%sums", 4 * head_dim),
    ):
        b.do(f"%{name} = getelementptr i8, ptr {base}, i64 {b.let(f'mul i64 %h, {size}')}")
    _most(b)
    b.do("exps:")
    _exponentials(b)
    b.do("%fading = fsub float %before, %m")
    b.do("%factor = call float @expf(float %fading)")
    old = b.let("load float, ptr %total_h")
    new = b.let(f"call float @llvm.fma.f32(float %factor, float {old}, float %tail_sum)")
    b.do(f"store float {new}, ptr %total_h")
    b.do("store float %m, ptr %most_h")
    b.do("br i1 %is_first, label %head_end, label %fade")
    b.do("fade:")
    factor = b.spread("float", "%factor")
    for place in range(0, head_dim, LANES):
        address = b.at("%sums_h", 4 * place)
        value = b.let(f"load {F}, ptr {address}, align 64")
        b.do(f"store {F} {b.let(f'fmul {F} {value}, {factor}')}, ptr {address}, align 64")
    b.do("br label %head_end")
    b.do("head_end:")
    after = b.at("%weights_h", b.let("mul i64 %count, 2"))
    b.do(f"store <8 x i16> zeroinitializer, ptr {after}, align 2")
    b.do("%h_next = add i64 %h, 1")
    b.do(f"%more_heads = icmp slt i64 %h_next, {heads}")
    b.do("br i1 %more_heads, label %head, label %weighed")
    b.do("weighed:")


def _most(b: Body) -> None:
    """Find the greatest score, `%m`; where it is minus infinity, all weights are zeros."""
    b.do("br label %most_test")
    b.do("most_test: %i = phi i64 [0, %head], [%i_next, %most_step]")
    nothing = same_float(float("-inf"))
    b.do(f"%top = phi {F} [{nothing}, %head], [%top_next, %most_step]")
    b.do("%has_more = icmp slt i64 %i, %full")
    b.do("br i1 %has_more, label %most_step, label %most_tail")
    b.do("most_step:")
    here = b.at("%scores_h", b.let("mul i64 %i, 4"))
    b.do(f"%top_next = {_greater(b, '%top', b.let(f'load {F}, ptr {here}, align 64'))}")
    b.do(f"%i_next = add i64 %i, {LANES}")
    b.do("br label %most_test")
    b.do("most_tail: %j = phi i64 [%full, %most_test], [%j_next, %most_one]")
    b.do(f"%tail = phi float [{_MINUS_INFINITY}, %most_test], [%tail_next, %most_one]")
    b.do("%has_tail = icmp slt i64 %j, %count")
    b.do("br i1 %has_tail, label %most_one, label %most_found")
    b.do("most_one:")
    one = b.let(f"load float, ptr {b.at('%scores_h', b.let('mul i64 %j, 4'))}")
    b.do(f"%tail_next = {_max(b, '%tail', one)}")
    b.do("%j_next = add i64 %j, 1")
    b.do("br label %most_tail")
    b.do("most_found:")
    top = "%top"
    for step in _STEPS:
        top = b.let(_greater(b, top, _turned(b, top, step)))
    found = b.let(_max(b, b.let(f"extractelement {F} {top}, i32 0"), "%tail"))
    b.do("%before = load float, ptr %most_h")
    is_less = b.let(f"fcmp ogt float %before, {found}")
    b.do(f"%m = select i1 {is_less}, float %before, float {found}")
    b.do(f"%is_none = fcmp oeq float %m, {_MINUS_INFINITY}")
    b.do("br i1 %is_none, label %none, label %exps")
    b.do("none: %z = phi i64 [0, %most_found], [%z_next, %none]")
    into = b.at("%weights_h", b.let("mul i64 %z, 2"))
    b.do(f"store {BF16_HALVES} zeroinitializer, ptr {into}, align 2")
    b.do(f"%z_next = add i64 %z, {LANES}")
    b.do("%more_zeros = icmp slt i64 %z_next, %count")
    b.do("br i1 %more_zeros, label %none, label %head_end")


def _exponentials(b: Body) -> None:
    b.do("%m_all = insertelement " + f"{F} poison, float %m, i32 0")
    zeros = f"<{LANES} x i32> zeroinitializer"
    b.do(f"%m_same = shufflevector {F} %m_all, {F} poison, {zeros}")
    b.do("br label %exp_test")
    b.do("exp_test: %e = phi i64 [0, %exps], [%e_next, %exp_step]")
    # torch has two sums, of every second vector
    b.do(f"%sum = phi {F} [zeroinitializer, %exps], [%other, %exp_step]")
    b.do(f"%other = phi {F} [zeroinitializer, %exps], [%sum_next, %exp_step]")
    b.do("%has_exp = icmp slt i64 %e, %full")
    b.do("br i1 %has_exp, label %exp_step, label %exp_found")
    b.do("exp_step:")
    score = b.let(f"load {F}, ptr {b.at('%scores_h', b.let('mul i64 %e, 4'))}, align 64")
    weight = exponential(b, b.let(f"fsub {F} {score}, %m_same"))
    b.do(f"%sum_next = fadd {F} %sum, {weight}")
    into = b.at("%weights_h", b.let("mul i64 %e, 2"))
    b.do(f"store {BF16_HALVES} {rounded(b, weight)}, ptr {into}, align 2")
    b.do(f"%e_next = add i64 %e, {LANES}")
    b.do("br label %exp_test")
    b.do("exp_found:")
    total = b.let(f"fadd {F} %sum, %other")
    for step in _STEPS:
        total = b.let(f"fadd {F} {total}, {_turned(b, total, step)}")
    b.do(f"%vector_sum = extractelement {F} {total}, i32 0")
    b.do("br label %tail_test")
    b.do("tail_test: %f = phi i64 [%full, %exp_found], [%f_next, %tail_one]")
    b.do("%tail_sum = phi float [%vector_sum, %exp_found], [%tail_sum_next, %tail_one]")
    b.do("%has_one = icmp slt i64 %f, %count")
    b.do("br i1 %has_one, label %tail_one, label %exp_done")
    b.do("tail_one:")
    single = b.let(f"load float, ptr {b.at('%scores_h', b.let('mul i64 %f, 4'))}")
    value = b.let(f"call float @expf(float {b.let(f'fsub float {single}, %m')})")
    b.do(f"%tail_sum_next = fadd float %tail_sum, {value}")
    place = b.at("%weights_h", b.let("mul i64 %f, 2"))
    b.do(f"store i16 {_one_rounded(b, value)}, ptr {place}, align 2")
    b.do("%f_next = add i64 %f, 1")
    b.do("br label %tail_test")
    b.do("exp_done:")


def _turned(b: Body, vector: str, step: int) -> str:
    places = places_text([place ^ step for place in range(LANES)])
    return b.let(f"shufflevector {F} {vector}, {F} {vector}, {places}")


def _greater(b: Body, one: str, other: str) -> str:
    """Return what gives the greater of each two; what is no number stays none."""
    more = b.let(f"fcmp ogt {F} {one}, {other}")
    chosen = b.let(f"select <{LANES} x i1> {more}, {F} {one}, {F} {other}")
    none = b.let(f"fcmp uno {F} {one}, {other}")
    nothing = b.let(f"bitcast {I32} {same(-1)} to {F}")
    return f"select <{LANES} x i1> {none}, {F} {nothing}, {F} {chosen}"


def _max(b: Body, one: str, other: str) -> str:
    less = b.let(f"fcmp olt float {one}, {other}")
    return f"select i1 {less}, float {other}, float {one}"


def _one_rounded(b: Body, value: str) -> str:
    bits = b.let(f"bitcast float {value} to i32")
    odd = b.let(f"and i32 {b.let(f'lshr i32 {bits}, 16')}, 1")
    raised = b.let(f"add i32 {b.let(f'add i32 {odd}, 32767')}, {bits}")
    high = b.let(f"lshr i32 {raised}, 16")
    is_nan = b.let(f"fcmp uno float {value}, {value}")
    chosen = b.let(f"select i1 {is_nan}, i32 {_NAN_HALF}, i32 {high}")
    return b.let(f"trunc i32 {chosen} to i16")
