"""Find the parts of a tape that are alike, as the layers of a model are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from worker.model.tape import Entry, Ref, Tape, refs_in

# To call a part takes as long as an op or two.
_LEAST_OPS = 8


@dataclass(frozen=True, slots=True)
class TapePart:
    """Entries that follow each other, told in a way that does not say where they are.

    Attributes:
        numbers: of the entries.
        entries: the same, in which `Ref(None, i)` stands for `reads[i]` and entries are counted
            from the first one.
        reads: tensors that were there before.
        gives: tensors that later entries read, or that are the output.
        own_gives: the same, as the entries name them.
    """

    numbers: range
    entries: tuple[Entry, ...]
    reads: tuple[Ref, ...]
    gives: tuple[Ref, ...]
    own_gives: tuple[Ref, ...]


def parts(tape: Tape) -> list[TapePart]:
    """Divide a tape into parts; where it repeats itself, each repetition is one."""
    found = []
    read_later = {tape.output}
    for numbers in reversed(list(_repetitions(tape.entries))):
        part = _part(tape, numbers, read_later)
        read_later |= set(part.reads)
        found.append(part)
    return found[::-1]


def _part(tape: Tape, numbers: range, read_later: set[Ref]) -> TapePart:
    reads: dict[Ref, Ref] = {}

    def own(value: Any) -> Any:
        if isinstance(value, Ref):
            if value.entry is not None and value.entry in numbers:
                return Ref(value.entry - numbers.start, value.place)
            return reads.setdefault(value, Ref(None, len(reads)))
        if isinstance(value, (list, tuple)):
            return [own(inner) for inner in value]
        return value

    entries = []
    for number in numbers:
        entry = tape.entries[number]
        named = {name: own(value) for name, value in entry.named.items()}
        entries.append(replace(entry, args=tuple(map(own, entry.args)), named=named))
    given = (Ref(n, place) for n in numbers for place in range(tape.entries[n].results or 1))
    gives = tuple(ref for ref in given if ref in read_later)
    return TapePart(numbers, tuple(entries), tuple(reads), gives, tuple(map(own, gives)))


def _repetitions(entries: Sequence[Entry]) -> Iterator[range]:
    """Give ranges that cover all entries; those in the middle are as long as what repeats."""
    count = len(entries)
    marks = [_mark(entry) for entry in entries]
    middle = count // 2
    length = _length(marks, middle)
    if length is None:
        yield range(count)
        return
    begin, end = middle, middle + length
    while begin > 0 and marks[begin - 1] == marks[begin - 1 + length]:
        begin -= 1
    while end < count and marks[end] == marks[end - length]:
        end += 1
    starts = list(range(begin, end - length + 1, length))
    after = starts[-1] + length
    yield range(begin)
    yield from (range(start, start + length) for start in starts)
    yield range(after, count)


def _length(marks: Sequence[Any], at: int) -> int | None:
    """Return how many entries from `at` on come a second time right after."""
    for length in range(_LEAST_OPS, len(marks) - at):
        if marks[at : at + length] == marks[at + length : at + 2 * length]:
            return length
    return None


def _mark(entry: Entry) -> tuple[Any, int]:
    """Return what tells most entries apart; whether parts are alike, their text says."""
    return entry.op, sum(1 for _ in refs_in([*entry.args, entry.named]))
