"""Write in LLVM assembly what calls the attention: for one position, and for a pack of rows.

Both take a table of numbers of 64 bits, addresses and strides counted in numbers of bfloat16.
"""

from __future__ import annotations

from worker.model import team_text
from worker.model.attend_text import DECLARATIONS, AttendShape, group, scratch_bytes
from worker.model.attend_values import VECTOR_BYTES
from worker.model.lane_text import Body

# What a row of a pack's plan holds: the addresses of its request's keys and values, how far their
# heads are apart in bytes, and how many positions it sees; none where it is not used.
PLAN = ("k", "v", "k_bytes", "v_bytes", "end")
# What threads share out.
_JOB = ("q", "plan", "out", "q_head", "q_row", "scratch")


def module_text(shape: AttendShape, threads: int) -> str:
    """Return `attend_one(table)` and `attend_rows(table)`.

    The table of the first has the query `[1, heads, 1, dim]`, keys and values `[1, heads, end,
    dim]`, `scratch_bytes` of scratch for each thread, the result, the strides of the heads of
    query, keys and values, and `end`. That of the second has query, new keys and new values `[1,
    heads, rows, dim]`, the plan `[layers, rows, 5]`, scratch, the result `[1, rows, heads, dim]`,
    the strides of heads and rows of the first three, how many rows there are, and the number of
    the layer. New keys and values are put in their places.
    """
    parts = [DECLARATIONS, team_text.DECLARED * (threads > 1), group(shape), _share(shape)]
    parts += [_shared(shape, threads), _one(shape), _rows(shape)]
    return "\n".join(parts)


def _fields(b: Body, table: str, names: tuple[str, ...]) -> None:
    for i, name in enumerate(names):
        b.do(f"%{name} = load i64, ptr {b.at(table, 8 * i)}")


def _pointer(b: Body, name: str, *offsets: str) -> str:
    address = f"%{name}"
    for offset in offsets:
        address = b.let(f"add i64 {address}, {offset}")
    return b.let(f"inttoptr i64 {address} to ptr")


def _share(shape: AttendShape) -> str:
    """Write `share(job, from, to, thread)`: some heads of keys of some rows, counted row by row.

    Unused rows get zeros.
    """
    b = Body()
    b.do("entry:")
    _fields(b, "%job", _JOB)
    own = _pointer(b, "scratch", b.let(f"mul i64 %thread, {scratch_bytes(shape)}"))
    b.do("br label %test")
    b.do("test: %i = phi i64 [%from, %entry], [%i_next, %next]")
    b.do("%some = icmp slt i64 %i, %to")
    b.do("br i1 %some, label %work, label %exit")
    b.do("work:")
    row = b.let(f"sdiv i64 %i, {shape.kv_heads}")
    head = b.let(f"srem i64 %i, {shape.kv_heads}")
    _fields(b, _pointer(b, "plan", b.let(f"mul i64 {row}, {8 * len(PLAN)}")), PLAN)
    first = b.let(f"mul i64 {head}, {shape.shared}")
    place = b.let(f"add i64 {b.let(f'mul i64 {row}, {shape.heads}')}, {first}")
    out = _pointer(b, "out", b.let(f"mul i64 {place}, {shape.row_bytes}"))
    b.do("%is_used = icmp sgt i64 %end, 0")
    b.do("br i1 %is_used, label %attend, label %unused")
    b.do("attend:")
    query = _pointer(b, "q", b.let(f"mul i64 {row}, %q_row"), b.let(f"mul i64 {first}, %q_head"))
    keys, values = (_pointer(b, n, b.let(f"mul i64 {head}, %{n}_bytes")) for n in ("k", "v"))
    given = f"ptr {query}, i64 %q_head, ptr {keys}, ptr {values}, i64 %end"
    b.do(f"call void @group({given}, ptr {out}, ptr {own})")
    b.do("br label %next")
    b.do("unused:")
    for offset in range(0, shape.shared * shape.row_bytes, VECTOR_BYTES):
        b.do(f"store <16 x i32> zeroinitializer, ptr {b.at(out, offset)}, align 2")
    b.do("br label %next")
    b.do("next:")
    b.do("%i_next = add i64 %i, 1")
    b.do("br label %test")
    b.do("exit: ret void")
    return b.function("share", "ptr %job, i64 %from, i64 %to, i64 %thread")


def _shared(shape: AttendShape, threads: int) -> str:
    """Write `shared(job, count)`: so many heads of keys, by all threads."""
    if threads == 1:
        return """
define void @shared(ptr %job, i64 %count) {
  call void @share(ptr %job, i64 0, i64 %count, i64 0)
  ret void
}
"""
    return f"""
define internal void @team(ptr %both) {{
  %job = load ptr, ptr %both
  %count_at = getelementptr i64, ptr %both, i64 1
  %count = load i64, ptr %count_at
{team_text.own_part("%count")}
  call void @share(ptr %job, i64 %from, i64 %to, i64 %own)
  ret void
}}
define void @shared(ptr %job, i64 %count) {{
  %both = alloca [2 x i64]
  store ptr %job, ptr %both
  %count_at = getelementptr i64, ptr %both, i64 1
  store i64 %count, ptr %count_at
  call void @GOMP_parallel(ptr @team, ptr %both, i32 {threads}, i32 0)
  ret void
}}
"""


def _filled(b: Body, name: str, values: tuple[str, ...]) -> None:
    """Make a table on the stack."""
    b.do(f"%{name} = alloca [{len(values)} x i64]")
    for i, value in enumerate(values):
        b.do(f"store i64 {value}, ptr {b.at(f'%{name}', 8 * i)}")


def _one(shape: AttendShape) -> str:
    b = Body()
    b.do("entry:")
    names = ("q", "k", "v", "scratch", "out", "q_stride", "k_stride", "v_stride", "end")
    _fields(b, "%table", names)
    strides = [b.let(f"mul i64 %{name}_stride, 2") for name in ("q", "k", "v")]
    _filled(b, "plan", ("%k", "%v", *strides[1:], "%end"))
    b.do("%plan_at = ptrtoint ptr %plan to i64")
    _filled(b, "job", ("%q", "%plan_at", "%out", strides[0], "0", "%scratch"))
    b.do(f"call void @shared(ptr %job, i64 {shape.kv_heads})")
    b.do("ret void")
    return b.function("attend_one", "ptr %table")


def _rows(shape: AttendShape) -> str:
    b = Body()
    b.do("entry:")
    given = ("q", "new_k", "new_v", "plans", "scratch", "out")
    strides = tuple(f"{name}_{what}s" for name in given[:3] for what in ("head", "row"))
    _fields(b, "%table", (*given, *strides, "count", "layer"))
    size = b.let(f"mul i64 %count, {8 * len(PLAN)}")
    b.do(f"%plan_at = add i64 %plans, {b.let(f'mul i64 %layer, {size}')}")
    q_head, q_row = (b.let(f"mul i64 %q_{what}s, 2") for what in ("head", "row"))
    b.do(f"%items = mul i64 %count, {shape.kv_heads}")
    b.do("br label %test")
    b.do("test: %i = phi i64 [0, %entry], [%i_next, %next]")
    b.do("%some = icmp slt i64 %i, %items")
    b.do("br i1 %some, label %work, label %written")
    b.do("work:")
    row = b.let(f"sdiv i64 %i, {shape.kv_heads}")
    head = b.let(f"srem i64 %i, {shape.kv_heads}")
    _fields(b, _pointer(b, "plan_at", b.let(f"mul i64 {row}, {8 * len(PLAN)}")), PLAN)
    b.do("%is_used = icmp sgt i64 %end, 0")
    b.do("br i1 %is_used, label %put, label %next")
    b.do("put:")
    last = b.let(f"mul i64 {b.let('sub i64 %end, 1')}, {shape.row_bytes}")
    for name in ("k", "v"):
        steps = [
            b.let(f"mul i64 {b.let(f'mul i64 {number}, %new_{name}_{what}s')}, 2")
            for number, what in ((row, "row"), (head, "head"))
        ]
        source = _pointer(b, f"new_{name}", *steps)
        to = _pointer(b, name, b.let(f"mul i64 {head}, %{name}_bytes"), last)
        for offset in range(0, shape.row_bytes, VECTOR_BYTES):
            value = b.let(f"load <16 x i32>, ptr {b.at(source, offset)}, align 2")
            b.do(f"store <16 x i32> {value}, ptr {b.at(to, offset)}, align 2")
    b.do("br label %next")
    b.do("next:")
    b.do("%i_next = add i64 %i, 1")
    b.do("br label %test")
    b.do("written:")
    _filled(b, "job", ("%q", "%plan_at", "%out", q_head, q_row, "%scratch"))
    b.do("call void @shared(ptr %job, i64 %items)")
    b.do("ret void")
    return b.function("attend_rows", "ptr %table")
