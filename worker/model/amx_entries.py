"""Write in LLVM assembly what calls the products: rows are put in order, threads share the work."""

from __future__ import annotations

from collections.abc import Sequence

from worker.model.amx_rows import paired
from worker.model.amx_text import DECLARED, GIVEN, ProductShape, configuration, share

_TEAM = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""


def module_text(shapes: Sequence[ProductShape], threads: int) -> str:
    """Return a function `(table)` for each shape, which divides the outputs among threads.

    The table holds the addresses of the weight `[outputs, inputs]`, of the rows `[rows, inputs]`,
    where there are several that of as much memory to put them in order, and of the result
    `[rows, outputs]`.
    """
    parts = [DECLARED, _TEAM * (threads > 1)]
    parts += [configuration(rows) for rows in sorted({shape.rows for shape in shapes})]
    for shape in shapes:
        parts += [share(shape), _whole(shape, threads)]
        if shape.rows > 1:
            parts.append(paired(_pairing(shape), shape.rows, shape.inputs))
    return "\n".join(parts)


def _pairing(shape: ProductShape) -> str:
    return f"pair_{shape.name}"


def _whole(shape: ProductShape, threads: int) -> str:
    name, blocks = shape.name, shape.blocks
    several = shape.rows > 1
    names = ("w", "x", "pairs", "y") if several else ("w", "x", "y")
    lines = [f"define void @{name}(ptr %given) {{", *_read("given", names)]
    if several:
        lines.append(f"  call void @{_pairing(shape)}(ptr %x, ptr %pairs)")
    rows = "%pairs" if several else "%x"
    if threads == 1:
        given = f"ptr %w, ptr {rows}, ptr %y, i64 0, i64 {blocks}"
        lines += [f"  call void @share_{name}({given})", "  ret void", "}"]
        return "\n".join(lines)
    lines.append("  %table = alloca [3 x ptr]")
    for i, value in enumerate(("%w", rows, "%y")):
        lines += [
            f"  %place{i} = getelementptr ptr, ptr %table, i64 {i}",
            f"  store ptr {value}, ptr %place{i}",
        ]
    lines += [
        f"  call void @GOMP_parallel(ptr @team_{name}, ptr %table, i32 {threads}, i32 0)",
        "  ret void",
        "}",
        f"define internal void @team_{name}(ptr %table) {{",
        *_read("table", ("w", "x", "y")),
        "  %own32 = call i32 @omp_get_thread_num()",
        "  %all32 = call i32 @omp_get_num_threads()",
        "  %own = sext i32 %own32 to i64",
        "  %all = sext i32 %all32 to i64",
        "  %after = add i64 %own, 1",
        f"  %b = mul i64 %own, {blocks}",
        f"  %e = mul i64 %after, {blocks}",
        "  %from = sdiv i64 %b, %all",
        "  %to = sdiv i64 %e, %all",
        f"  call void @share_{name}({GIVEN})",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def _read(table: str, names: Sequence[str]) -> list[str]:
    """Read the addresses in a table."""
    lines = []
    for i, what in enumerate(names):
        lines += [
            f"  %{what}_at = getelementptr ptr, ptr %{table}, i64 {i}",
            f"  %{what} = load ptr, ptr %{what}_at",
        ]
    return lines
