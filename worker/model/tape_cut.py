"""Cut a tape into spans: those that are alike at each position, and those that go along with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from worker.model.tape import Later, Ref, Tape, refs_in

# To start the replay of a graph takes as long as to start some ops.
_LEAST_OPS = 4


@dataclass(frozen=True, slots=True)
class Span:
    """Ops that follow each other.

    Attributes:
        is_fixed: whether they do the same at each position, to tensors that have the same form.
        numbers: of the entries, in order.
        reads: tensors that were there before.
        gives: tensors that a later span reads, or that are the output of the tape.
    """

    is_fixed: bool
    numbers: tuple[int, ...]
    reads: tuple[Ref, ...]
    gives: tuple[Ref, ...]


def walk(tape: Tape, numbers: Iterable[int], values: dict[Ref, torch.Tensor], at: int) -> None:
    """Do entries at position `at`, with the tensors in `values`; what they give is added there."""
    for number in numbers:
        entry = tape.entries[number]
        args = [_filled(value, values, at) for value in entry.args]
        named = {name: _filled(value, values, at) for name, value in entry.named.items()}
        result = entry.op(*args, **named)
        tensors = [result] if entry.results is None else result
        values.update((Ref(number, place), tensor) for place, tensor in enumerate(tensors))


def moving_refs(tape: Tape, steps: Mapping[int, Sequence[torch.Tensor]], fixed: int) -> set[Ref]:
    """Do the step at two positions and return the tensors that are not alike at both.

    Alike are those of the same shape, strides and type that are no part of a store, which is
    another one for each request.

    Args:
        steps: for each position the inputs of the tape, of which stores are those from `fixed` on.
    """
    runs = []
    for at, inputs in steps.items():
        outside = [*inputs, *tape.outside[len(inputs) :]]
        values = {Ref(None, place): tensor for place, tensor in enumerate(outside)}
        walk(tape, range(len(tape.entries)), values, at)
        stores = {_storage(store) for store in inputs[fixed:]}
        runs.append({ref: _form(tensor, stores) for ref, tensor in values.items()})
    first, second = runs
    return {ref for ref, form in first.items() if form is None or form != second[ref]}


def cut(tape: Tape, moving: set[Ref]) -> list[Span]:
    """Return the spans of a tape; ops whose result nobody reads are left out.

    Fixed spans write to no tensor that was there before, take no position and nothing of `moving`.
    Short ones are made part of those around them.
    """
    numbers = _needed(tape)
    is_fixed = {number: _is_fixed(tape, number, moving) for number in numbers}
    for fixed, group in groupby(numbers, is_fixed.__getitem__):
        short = list(group)
        if fixed and len(short) < _LEAST_OPS:
            is_fixed.update(dict.fromkeys(short, False))
    groups = [(fixed, tuple(group)) for fixed, group in groupby(numbers, is_fixed.__getitem__)]
    spans: list[Span] = []
    read_later = {tape.output}
    for fixed, members in reversed(groups):
        own = {Ref(n, place) for n in members for place in range(tape.entries[n].results or 1)}
        reads = dict.fromkeys(ref for n in members for ref in _refs(tape, n) if ref not in own)
        gives = sorted(own & read_later, key=lambda ref: (ref.entry or 0, ref.place))
        spans.append(Span(fixed, members, tuple(reads), tuple(gives)))
        read_later |= set(reads)
    return spans[::-1]


def _needed(tape: Tape) -> list[int]:
    """Return the numbers of entries that write something, or whose result is read."""
    read, found = {tape.output}, []
    for number in reversed(range(len(tape.entries))):
        entry = tape.entries[number]
        own = (Ref(number, place) for place in range(entry.results or 1))
        if entry.is_mutable or not read.isdisjoint(own):
            found.append(number)
            read.update(_refs(tape, number))
    return found[::-1]


def _is_fixed(tape: Tape, number: int, moving: set[Ref]) -> bool:
    entry = tape.entries[number]
    goes_along = _has_later([*entry.args, *entry.named.values()])
    return not entry.is_mutable and not goes_along and moving.isdisjoint(_refs(tape, number))


def _has_later(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_later, value))
    return isinstance(value, Later)


def _refs(tape: Tape, number: int) -> list[Ref]:
    entry = tape.entries[number]
    return list(refs_in([*entry.args, entry.named]))


def _form(tensor: torch.Tensor, stores: set[int]) -> Any:
    """Return what a kernel sees of a tensor beside its numbers; None of a part of a store."""
    if _storage(tensor) in stores:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _filled(value: Any, values: Mapping[Ref, torch.Tensor], at: int) -> Any:
    if isinstance(value, Ref):
        return values[value]
    if isinstance(value, Later):
        return at + value.offset
    if isinstance(value, (list, tuple)):
        return [_filled(inner, values, at) for inner in value]
    return value
