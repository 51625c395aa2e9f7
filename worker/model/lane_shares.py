"""Write the loops around the products: over rows, over blocks of outputs, and over threads."""

from __future__ import annotations

from worker.model import team_text
from worker.model.lane_products import SHAPES
from worker.model.lane_text import LANES, RECORD_BYTES, TILES, Form

_BLOCK_BYTES = 2 * LANES * TILES

_PREPARE = f"""
define void @prepare_rows(ptr %x, ptr %records, i64 %groups, i64 %rows) {{
entry:
  %x_bytes = mul i64 %groups, 64
  %record_bytes = mul i64 %groups, {RECORD_BYTES}
  br label %loop
loop:
  %row = phi i64 [0, %entry], [%next, %more]
  %some = icmp slt i64 %row, %rows
  br i1 %some, label %more, label %exit
more:
  %from = mul i64 %row, %x_bytes
  %to = mul i64 %row, %record_bytes
  %here = getelementptr i8, ptr %x, i64 %from
  %there = getelementptr i8, ptr %records, i64 %to
  call void @prepare(ptr %here, ptr %there, i64 %groups)
  %next = add i64 %row, 1
  br label %loop
exit:
  ret void
}}
"""


# The fields of the two jobs.
_STEP = ("ptr w", "ptr scales", "ptr records", "ptr y", "i64 groups", "i64 rows", "i64 y_bytes")
_WEIGHTS = ("ptr w", "ptr out", "i64 groups", "i64 out_bytes")


def shares(form: Form, *, has_team: bool) -> str:
    """Write what is called from outside, pointers and numbers alike of 64 bits.

    `run_steps(w, scales, x, records, y, groups, rows, y_bytes, blocks, threads)`,
    `run_weights(w, out, groups, out_bytes, blocks, threads)`, and `step(table)` with the addresses
    of `w`, `scales`, `x`, `records` and `y`, the number of tiles and of groups, rows and threads.
    """
    parts = [_PREPARE, team_text.DECLARED * has_team, _steps(form), _weights(form)]
    parts += [_share(name, has_team) for name in ("steps", "weights")]
    parts += [_run_steps(), _run_weights(), _step()]
    return "\n".join(parts)


def _fields(*names: str) -> str:
    """Read the fields of a job, which are eight bytes each."""
    lines = []
    for i, name in enumerate(names):
        kind, _, value = name.partition(" ")
        lines.append(f"  %f{i} = getelementptr i64, ptr %job, i64 {i}")
        lines.append(f"  %{value} = load {kind}, ptr %f{i}")
    return "\n".join(lines)


def _steps(form: Form) -> str:
    """Write `steps(job, begin, end)`: all rows by the blocks of outputs from `begin` to `end`."""
    counts = [count for count, _ in SHAPES]
    came = "".join(f", [%row{count}, %do{count}]" for count in counts)
    tries = "".join(
        f"""try{count}:
  %has{count} = icmp sge i64 %left, {count}
  br i1 %has{count}, label %do{count}, label %{f"try{less}" if less else "after"}
do{count}:
  call void @rows{count}(ptr %bw, ptr %bs, ptr %br, ptr %by, i64 %groups, i64 %y_bytes)
  %row{count} = add i64 %row, {count}
  br label %more
"""
        for count, less in zip(counts, [*counts[1:], 0], strict=True)
    )
    return f"""define internal void @steps(ptr %job, i64 %begin, i64 %end) {{
entry:
{_fields(*_STEP)}
  %w_bytes = mul i64 %groups, {TILES * form.group_bytes}
  %row_bytes = mul i64 %groups, {RECORD_BYTES}
  br label %blocks
blocks:
  %block = phi i64 [%begin, %entry], [%next, %after]
  %some = icmp slt i64 %block, %end
  br i1 %some, label %work, label %exit
work:
  %wo = mul i64 %block, %w_bytes
  %bw = getelementptr i8, ptr %w, i64 %wo
  %so = mul i64 %block, {2 * _BLOCK_BYTES}
  %bs = getelementptr i8, ptr %scales, i64 %so
  %yo = mul i64 %block, {_BLOCK_BYTES}
  br label %more
more:
  %row = phi i64 [0, %work]{came}
  %left = sub i64 %rows, %row
  %ro = mul i64 %row, %row_bytes
  %br = getelementptr i8, ptr %records, i64 %ro
  %yr = mul i64 %row, %y_bytes
  %yb = add i64 %yr, %yo
  %by = getelementptr i8, ptr %y, i64 %yb
  br label %try{counts[0]}
{tries}after:
  %next = add i64 %block, 1
  br label %blocks
exit:
  ret void
}}
"""


def _weights(form: Form) -> str:
    """Write `weights(job, begin, end)`: the blocks of outputs from `begin` to `end`."""
    return f"""define internal void @weights(ptr %job, i64 %begin, i64 %end) {{
entry:
{_fields(*_WEIGHTS)}
  %w_bytes = mul i64 %groups, {TILES * form.group_bytes}
  br label %blocks
blocks:
  %block = phi i64 [%begin, %entry], [%next, %work]
  %some = icmp slt i64 %block, %end
  br i1 %some, label %work, label %exit
work:
  %wo = mul i64 %block, %w_bytes
  %bw = getelementptr i8, ptr %w, i64 %wo
  %oo = mul i64 %block, {_BLOCK_BYTES}
  %bo = getelementptr i8, ptr %out, i64 %oo
  call void @unpack(ptr %bw, ptr %bo, i64 %groups, i64 %out_bytes)
  %next = add i64 %block, 1
  br label %blocks
exit:
  ret void
}}
"""


def _share(name: str, has_team: bool) -> str:
    """Write what divides the blocks among threads; outputs do not depend on one another."""
    alone = f"""define internal void @share_{name}(ptr %job, i64 %blocks, i64 %threads) {{
  call void @{name}(ptr %job, i64 0, i64 %blocks)
  ret void
}}
"""
    if not has_team:
        return alone
    return f"""define internal void @team_{name}(ptr %shared) {{
  %job_at = getelementptr i64, ptr %shared, i64 0
  %job = load ptr, ptr %job_at
  %blocks_at = getelementptr i64, ptr %shared, i64 1
  %blocks = load i64, ptr %blocks_at
{team_text.own_part("%blocks")}
  call void @{name}(ptr %job, i64 %from, i64 %to)
  ret void
}}
define internal void @share_{name}(ptr %job, i64 %blocks, i64 %threads) {{
  %one = icmp sle i64 %threads, 1
  br i1 %one, label %alone, label %several
alone:
  call void @{name}(ptr %job, i64 0, i64 %blocks)
  ret void
several:
  %shared = alloca [2 x i64]
  store ptr %job, ptr %shared
  %second = getelementptr i64, ptr %shared, i64 1
  store i64 %blocks, ptr %second
  %count = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @team_{name}, ptr %shared, i32 %count, i32 0)
  ret void
}}
"""


def _filled(*names: str) -> str:
    """Make a job on the stack, of values with the names of its fields."""
    lines = [f"  %job = alloca [{len(names)} x i64]"]
    for i, name in enumerate(names):
        lines.append(f"  %f{i} = getelementptr i64, ptr %job, i64 {i}")
        lines.append(f"  store {name.replace(' ', ' %')}, ptr %f{i}")
    return "\n".join(lines)


def _run_steps() -> str:
    return f"""
define void @run_steps(ptr %w, ptr %scales, ptr %x, ptr %records, ptr %y, i64 %groups, i64 %rows,
                       i64 %y_bytes, i64 %blocks, i64 %threads) {{
  call void @prepare_rows(ptr %x, ptr %records, i64 %groups, i64 %rows)
{_filled(*_STEP)}
  call void @share_steps(ptr %job, i64 %blocks, i64 %threads)
  ret void
}}
"""


def _step() -> str:
    names = ("w", "scales", "x", "records", "y")
    fields = _fields(
        *(f"ptr {n}" for n in names), "i64 tiles", "i64 groups", "i64 rows", "i64 threads"
    )
    return f"""
define void @step(ptr %job) {{
{fields}
  %blocks = sdiv i64 %tiles, {TILES}
  %y_bytes = mul i64 %blocks, {_BLOCK_BYTES}
  call void @run_steps(ptr %w, ptr %scales, ptr %x, ptr %records, ptr %y, i64 %groups, i64 %rows,
                       i64 %y_bytes, i64 %blocks, i64 %threads)
  ret void
}}
"""


def _run_weights() -> str:
    return f"""
define void @run_weights(ptr %w, ptr %out, i64 %groups, i64 %out_bytes, i64 %blocks,
                         i64 %threads) {{
{_filled(*_WEIGHTS)}
  call void @share_weights(ptr %job, i64 %blocks, i64 %threads)
  ret void
}}
"""
