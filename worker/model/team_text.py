"""Write in LLVM assembly how the threads of torch's OpenMP share a piece of work."""

from __future__ import annotations

# Of the OpenMP that torch brings: its threads are there already, and know how to wait.
SYMBOLS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
DECLARED = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""


def own_part(count: str) -> str:
    """Write which of `count` pieces this thread has: from `%from` to before `%to`.

    `%own` is its number in the team, which may be smaller than what was asked for.
    """
    return f"""\
  %own32 = call i32 @omp_get_thread_num()
  %all32 = call i32 @omp_get_num_threads()
  %own = sext i32 %own32 to i64
  %all = sext i32 %all32 to i64
  %after = add i64 %own, 1
  %b = mul i64 %own, {count}
  %e = mul i64 %after, {count}
  %from = sdiv i64 %b, %all
  %to = sdiv i64 %e, %all"""
