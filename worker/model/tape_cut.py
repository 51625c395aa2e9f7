"""Cut a tape into spans: those that are alike at each position, and those that go along with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from worker.model.amx_products import AmxProduct
from worker.model.tape import Entry, Later, Opaque, Ref, Tape, refs_in

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


def _done(entry: Entry, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    return entry.op(*args, **named)


def walk(
    tape: Tape,
    numbers: Iterable[int],
    values: dict[Ref, torch.Tensor],
    at: int,
    *,
    does: Callable[[Entry, Sequence[Any], Mapping[str, Any]], Any] = _done,
) -> None:
    """Do entries at position `at`, with the tensors in `values`; what they give is added there."""
    for number in numbers:
        entry = tape.entries[number]
        args = [_filled(value, values, at) for value in entry.args]
        named = {name: _filled(value, values, at) for name, value in entry.named.items()}
        result = does(entry, args, named)
        tensors = [result] if entry.results is None else result
        values.update((Ref(number, place), tensor) for place, tensor in enumerate(tensors))


def walk_forms(
    tape: Tape, numbers: Iterable[int], values: dict[Ref, torch.Tensor], at: int
) -> None:
    """Do what `walk` does with tensors of the same forms, in which products are zeros.

    Nothing of a tape follows from what the numbers are, and products by weights are nearly all the
    time that a step takes.
    """
    walk(tape, numbers, values, at, does=_formed)


def _formed(entry: Entry, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    if isinstance(entry.op, (Opaque, AmxProduct)):
        return entry.op.form(*args)
    name = entry.op.overloadpacket.__name__
    if name in ("mv", "addmv"):
        *_, weight, row = args
        return row.new_zeros(len(weight))
    if name == "mm":
        left, right = args
        return right.new_zeros(len(left), right.shape[1])
    return entry.op(*args, **named)


def moving_refs(tape: Tape, steps: Mapping[int, Sequence[torch.Tensor]], fixed: int) -> set[Ref]:
    """Do the step at two positions and return the tensors that are not alike at both.

    Alike are those of the same shape, strides and type that are no part of a store, which is
    another one for each request.

    Args:
        steps: for each position the inputs of the tape, of which stores are those from `fixed` on.
    """
    first, second = (walked(tape, inputs, at) for at, inputs in steps.items())
    inputs = len(next(iter(steps.values())))
    return moved(first, second, range(fixed, inputs))


def walked(tape: Tape, inputs: Sequence[torch.Tensor], at: int) -> dict[Ref, torch.Tensor]:
    """Do what `walk_forms` does with all entries; return every tensor there was."""
    outside = [*inputs, *tape.outside[len(inputs) :]]
    values = {Ref(None, place): tensor for place, tensor in enumerate(outside)}
    walk_forms(tape, range(len(tape.entries)), values, at)
    return values


def moved(
    first: Mapping[Ref, torch.Tensor], second: Mapping[Ref, torch.Tensor], stores: range
) -> set[Ref]:
    """Return what is not alike in what `walked` gave at two positions; `stores` are inputs."""
    forms = []
    for values in (first, second):
        foreign = {_storage(values[Ref(None, place)]) for place in stores}
        forms.append({ref: _form(tensor, foreign) for ref, tensor in values.items()})
    return {ref for ref, form in forms[0].items() if form is None or form != forms[1][ref]}


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
