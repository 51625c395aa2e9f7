"""Write in LLVM assembly how rows are turned into the order of a tile, and back."""

from __future__ import annotations

from collections.abc import Iterable

# Words of 32 bits in a vector.
LANES = 16
_KIND = f"<{LANES} x i32>"


def paired(name: str, rows: int, inputs: int) -> str:
    """Write `name(x, to)`: 2, 4, 8 or 16 rows of bfloat16 become `[pairs of inputs, rows, 2]`."""
    lines = [
        f"define internal void @{name}(ptr %x, ptr %to) {{",
        "begin:",
        "  br label %step",
        "step:",
        "  %at = phi i64 [0, %begin], [%at_next, %step]",
        "  %from = getelementptr i32, ptr %x, i64 %at",
        f"  %into_at = mul i64 %at, {rows}",
        "  %into = getelementptr i32, ptr %to, i64 %into_at",
    ]
    for row in range(rows):
        lines += [
            f"  %p{row} = getelementptr i32, ptr %from, i64 {row * inputs // 2}",
            f"  %x{row} = load {_KIND}, ptr %p{row}, align 2",
        ]
    lines += squares_turned("%x", rows)
    for pair in range(LANES):
        begin, turned = pair // rows * rows, f"{_KIND} {square('%x', rows)}{pair % rows}"
        places = _places(range(begin, begin + rows))
        lines += [
            f"  %piece{pair} = shufflevector {turned}, {_KIND} poison, {places}",
            f"  %q{pair} = getelementptr i32, ptr %into, i64 {pair * rows}",
            f"  store <{rows} x i32> %piece{pair}, ptr %q{pair}, align 4",
        ]
    lines += [
        f"  %at_next = add i64 %at, {LANES}",
        f"  %more = icmp slt i64 %at_next, {inputs // 2}",
        "  br i1 %more, label %step, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def by_row(sums: str, rows: int, name: str) -> list[str]:
    """Write how 16 sums of each row are read, which lie at `sums` as `[16, rows]` words.

    Those of row `i` are `name` + `i` of `square(name, rows)`.
    """
    if rows == 1:
        return [f"  {name}0 = load {_KIND}, ptr {sums}, align 4"]
    lines = []
    for i in range(rows):
        pieces = []
        for place in range(i, LANES, rows):
            piece = f"{name}piece{place}"
            lines += [
                f"  {piece}_at = getelementptr i32, ptr {sums}, i64 {place * rows}",
                f"  {piece} = load <{rows} x i32>, ptr {piece}_at, align 4",
            ]
            pieces.append(piece)
        width = rows
        while len(pieces) > 1:
            joined = []
            for one, other in zip(pieces[::2], pieces[1::2], strict=True):
                both = f"<{width} x i32> {one}, <{width} x i32> {other}"
                lines.append(f"  {one}x = shufflevector {both}, {_places(range(2 * width))}")
                joined.append(f"{one}x")
            pieces, width = joined, 2 * width
        lines.append(f"  {name}{i} = bitcast {_KIND} {pieces[0]} to {_KIND}")
    return [*lines, *squares_turned(name, rows)]


def square(name: str, rows: int) -> str:
    """Return the name, but for a number, of vectors in which squares were turned."""
    return f"{name}t{rows}_" if rows > 1 else name


def squares_turned(name: str, rows: int) -> list[str]:
    """Write how each square of `rows` vectors is turned round: rows become columns.

    Places that are 1 apart change with each other, then those that are 2 apart, and so on.
    """
    lines, apart = [], 1
    while apart < rows:
        for row in range(rows):
            first, second = row & ~apart, row | apart
            before, after = square(name, apart), square(name, 2 * apart)
            both = f"{_KIND} {before}{first}, {_KIND} {before}{second}"
            places = _places(
                (place & ~apart) + (LANES if place & apart else 0) + (row & apart)
                for place in range(LANES)
            )
            lines.append(f"  {after}{row} = shufflevector {both}, {places}")
        apart *= 2
    return lines


def _places(places: Iterable[int]) -> str:
    numbers = [f"i32 {place}" for place in places]
    return f"<{len(numbers)} x i32> <{', '.join(numbers)}>"
