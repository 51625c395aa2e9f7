"""Write in LLVM assembly what calls the products: rows are put in order, threads share the work."""

from __future__ import annotations

from collections.abc import Sequence

from worker.model import team_text
from worker.model.amx_rows import paired
from worker.model.amx_text import DECLARED, GIVEN, ProductShape, configuration, share


def module_text(shapes: Sequence[ProductShape], threads: int) -> str:
    """Return a function `(table)` for each shape, which divides the outputs among threads.

    The table holds the addresses of the weight `[outputs, inputs]`, of the rows `[rows, inputs]`,
    where there are several that of as much memory to put them in order, and of the result
    `[rows, outputs]`.
    """
    parts = [DECLARED, team_text.DECLARED * (threads > 1)]
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
        team_text.own_part(str(blocks)),
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
