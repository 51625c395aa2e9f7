"""Write in LLVM assembly how values are summed up by their weights, as MKL does for one row."""

from __future__ import annotations

from collections.abc import Mapping

from worker.model.attend_floats import PAIRS, dot, places_text
from worker.model.lane_text import I32, LANES, Body, F

# Positions that are added up before they are added to those before them.
OCTET = 8
_ROW = f"<{2 * LANES} x i16>"
VECTOR_BYTES = 64
# Vectors that sums may take of the processor's 32, in fours: two sums and two totals of a head.
_MOST_HEADS = 7
# Columns of 8 lie together in a quarter of a vector; pairs of two rows are made within it.
_QUARTERS = [8 * quarter + place for quarter in range(4) for place in range(4)]
_LOW = [place + row for place in _QUARTERS for row in (0, 2 * LANES)]
_HIGH = [place + 4 for place in _LOW]


def values(b: Body, heads: int, head_dim: int, weight_bytes: int) -> None:
    """Add to `%sums` of each head, 32 columns at a time, which `in_order` reads.

    After the last position come zeros.
    """
    together = max(n for n in range(1, min(heads, _MOST_HEADS) + 1) if heads % n == 0)
    chunks = [range(first, first + together) for first in range(0, heads, together)]
    b.do("br label %columns")
    b.do(f"columns: %c = phi i64 [0, %weighed], [%c_next, %summed{len(chunks) - 1}]")
    for number, chunk in enumerate(chunks):
        before = f"summed{number - 1}" if number else "columns"
        sums = b.at("%sums", b.let("mul i64 %c, 2"))
        places = {
            (head, half): b.at(sums, 4 * (head * head_dim + half * LANES))
            for head in chunk
            for half in (0, 1)
        }
        _octets(b, number, before, places, 2 * head_dim, weight_bytes)
        b.do(f"summed{number}:")
        for (head, half), place in places.items():
            b.do(f"store {F} %new{number}_{head}_{half}, ptr {place}, align 64")
    b.do(f"%c_next = add i64 %c, {VECTOR_BYTES}")
    b.do(f"%more_columns = icmp slt i64 %c_next, {2 * head_dim}")
    b.do("br i1 %more_columns, label %columns, label %block_end")


def _octets(
    b: Body,
    number: int,
    before: str,
    places: Mapping[tuple[int, int], str],
    row_bytes: int,
    weight_bytes: int,
) -> None:
    """Go on with the sums of some heads: `%new<number>_<head>_<half>`."""
    began = {key: b.let(f"load {F}, ptr {place}, align 64") for key, place in places.items()}
    b.do(f"br label %octet{number}")
    t = f"%t{number}"
    b.do(f"octet{number}: {t} = phi i64 [0, %{before}], [{t}_next, %octet{number}]")
    sums = dict.fromkeys(places, "zeroinitializer")
    for (head, half), first in began.items():
        new = f"%new{number}_{head}_{half}"
        b.do(f"{new}_was = phi {F} [{first}, %{before}], [{new}, %octet{number}]")
    base = b.at(from_whole(b, "v", t, row_bytes), "%c")
    rows = [b.at(base, i * row_bytes) for i in range(OCTET)]
    weights = b.at("%weights", b.let(f"mul i64 {t}, 2"))
    for i in range(0, OCTET, 2):
        first, second = (b.let(f"load {_ROW}, ptr {row}, align 2") for row in rows[i : i + 2])
        pairs = []
        for order in (_LOW, _HIGH):
            both = b.let(f"shufflevector {_ROW} {first}, {_ROW} {second}, {places_text(order)}")
            pairs.append(b.let(f"bitcast {_ROW} {both} to {PAIRS}"))
        for head in sorted({head for head, _ in places}):
            weight = b.spread_at("i32", weights, head * weight_bytes + 2 * i)
            by = b.let(f"bitcast {I32} {weight} to {PAIRS}")
            for half, pair in enumerate(pairs):
                sums[head, half] = dot(b, sums[head, half], pair, by)
    for (head, half), total in sums.items():
        new = f"%new{number}_{head}_{half}"
        b.do(f"{new} = fadd {F} {new}_was, {total}")
    b.do(f"{t}_next = add i64 {t}, {OCTET}")
    b.do(f"{t}_more = icmp slt i64 {t}_next, %count")
    b.do(f"br i1 {t}_more, label %octet{number}, label %summed{number}")


def from_whole(b: Body, what: str, position: str, row_bytes: int) -> str:
    """Return where the positions from `position` on lie: among all, or in the tail."""
    row = b.at(f"%{what}b", b.let(f"mul i64 {position}, {row_bytes}"))
    is_tail = b.let(f"icmp eq i64 {position}, %{what}_whole")
    return b.let(f"select i1 {is_tail}, ptr %{what}_tail, ptr {row}")


def in_order(b: Body, address: str) -> list[str]:
    """Return 32 sums in the order of the columns, as two vectors."""
    both = ", ".join(
        f"{F} {b.let(f'load {F}, ptr {b.at(address, 4 * LANES * half)}, align 64')}"
        for half in (0, 1)
    )
    found = []
    for first in (0, LANES):
        places = [
            4 * (column // 8) + column % 4 + (LANES if column % 8 >= 4 else 0)
            for column in range(first, first + LANES)
        ]
        found.append(b.let(f"shufflevector {both}, {places_text(places)}"))
    return found
