"""Make a tape shorter: views that are made twice, and products of one row by several weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from worker.huge_pages import LEAST_BYTES
from worker.model.pages import empty_tensor
from worker.model.row_kernels import trials
from worker.model.tape import Entry, Ref, Tape, refs_in

_VIEWS = frozenset("expand permute select slice squeeze t transpose unsqueeze view".split())
# `reshape` is one too, or else a copy: the same one, unless what it copies is written to.
_PRODUCTS = frozenset(("mv", "addmv"))
_PRODUCTS_OF_MANY = frozenset(("mm",))
# A product by a weight of less than this takes longer than reading the weight: SmolLM2's step
# took 52 ms with seven products a layer and 47 ms with four.
_SMALL_BYTES = 2 << 20
_ALIGNED = 64  # elements: vectors then cross no cache line
_PLAIN = {"beta": 1, "alpha": 1}


@dataclass
class Rewriting:
    """Entries so far, and what became of the refs to the old ones."""

    entries: list[Entry] = field(default_factory=list)
    became: dict[Ref, Ref] = field(default_factory=dict)

    def add(self, entry: Entry, old: int | None = None) -> Ref:
        """Append an entry; `old` is the number of the one it takes the place of."""
        number = len(self.entries)
        self.entries.append(entry)
        if old is not None:
            for place in range(entry.results or 1):
                self.became[Ref(old, place)] = Ref(number, place)
        return Ref(number, 0)

    def renewed(self, value: Any) -> Any:
        """Return arguments with the refs they have now."""
        if isinstance(value, Ref):
            return value if value.entry is None else self.became[value]
        if isinstance(value, (list, tuple)):
            return type(value)(self.renewed(inner) for inner in value)
        return value

    def entry(self, old: Entry) -> Entry:
        """Return an entry with the refs it has now."""
        named = {name: self.renewed(value) for name, value in old.named.items()}
        return replace(old, args=tuple(self.renewed(value) for value in old.args), named=named)


def without_twins(tape: Tape, inputs: int) -> Tape:
    """Return the tape with each view made once.

    Args:
        inputs: how many of the outside tensors may be written to.
    """
    written = {Ref(None, place) for place in range(inputs)}
    done = Rewriting()
    made: dict[Any, Ref] = {}
    for number, old in enumerate(tape.entries):
        entry = done.entry(old)
        name = entry.op.overloadpacket.__name__
        touches = any(ref in written for ref in refs_in([*entry.args, entry.named]))
        if name in _VIEWS or (name == "reshape" and not touches):
            key = (entry.op, repr(entry.args), repr(sorted(entry.named.items())))
            if key in made:
                done.became[Ref(number, 0)] = made[key]
                continue
            made[key] = Ref(len(done.entries), 0)
        added = done.add(entry, number)
        if touches and (name in _VIEWS or name == "reshape" or entry.is_mutable):
            written.add(added)
    return Tape(done.entries, tape.outside, done.renewed(tape.output))


def fused(tape: Tape, inputs: int, *, rows: int = 1, moves: bool = True) -> Tape:
    """Return the tape with one product in the place of several of the same row, where that pays.

    Outputs of a product do not depend on one another, and shapes whose kernels do are left as they
    are. The weights are put together in private
    memory on huge pages, and become parts of the whole, so that none is held twice. So do small
    weights that stay alone: on pages of their own they would be read more slowly.

    Args:
        inputs: how many of the outside tensors may be written to.
        rows: of how many rows the products are.
        moves: whether weights may be put together that are not so already.
    """
    outside = list(tape.outside)
    groups = {g[0]: g for g in _groups(tape, inputs, rows) if moves or _is_free(tape, g)}
    members = {number for group in groups.values() for number in group}
    block = _Block(sum(_room(tape, group) for group in groups.values()))
    done = Rewriting()
    for number, old in enumerate(tape.entries):
        if len(groups.get(number, ())) > 1:
            _fuse(tape, groups[number], done, outside, block)
        elif number in groups:
            block.joined([_weight(tape, number)])
            done.add(done.entry(old), number)
        elif number not in members:
            done.add(done.entry(old), number)
    return Tape(done.entries, outside, done.renewed(tape.output))


class _Block:
    """Memory for many weights, on pages as large as one alone would not get."""

    def __init__(self, elements: int) -> None:
        with torch.inference_mode(mode=False):  # what parameters become parts of is no result
            self._left = empty_tensor((elements,), torch.bfloat16)

    def joined(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Put tensors one below the other; each becomes a part of the result.

        Nothing is moved where they lie so already, and on large pages.
        """
        if _are_joined(parts):
            return parts[0].as_strided(
                (sum(map(len, parts)), *parts[0].shape[1:]), parts[0].stride()
            )
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        elements = math.prod(shape)
        with torch.inference_mode(mode=False), torch.no_grad():
            whole = self._left[:elements].view(shape)
            self._left = self._left[-(-elements // _ALIGNED) * _ALIGNED :]
            begin = 0
            for part in parts:
                own = whole[begin : begin + len(part)]
                own.copy_(part)
                part.data = own
                begin += len(own)
        return whole


def _groups(tape: Tape, inputs: int, rows: int) -> Iterator[list[int]]:
    by_row: dict[Any, list[int]] = defaultdict(list)
    for number, entry in enumerate(tape.entries):
        if entry.op.overloadpacket.__name__ not in _products(rows) or not _is_plain(entry.named):
            continue
        *fixed, row = entry.args
        if all(_is_weight(tape, ref, inputs) for ref in fixed):
            by_row[(entry.op, row)].append(number)
    verdicts: dict[Any, bool] = {}
    for (op, _), numbers in by_row.items():
        weights = [_weight(tape, number) for number in numbers]
        distinct = len({weight.data_ptr() for weight in weights}) == len(weights)
        may_join = len(numbers) > 1 and distinct
        may_join = may_join and min(w.nbytes for w in weights) < _SMALL_BYTES
        shapes = (op, *(weight.shape for weight in weights))
        if may_join and shapes not in verdicts:
            verdicts[shapes] = _is_same_joined(op, weights, rows)
        if may_join and verdicts[shapes]:
            yield numbers
        else:
            yield from (
                [n] for n, w in zip(numbers, weights, strict=True) if w.nbytes < LEAST_BYTES
            )


def _products(rows: int) -> frozenset[str]:
    return _PRODUCTS if rows == 1 else _PRODUCTS_OF_MANY


def _is_free(tape: Tape, group: list[int]) -> bool:
    """Say whether a group of several is to be had without moving a weight."""
    return len(group) > 1 and _room(tape, group) == 0


def _is_same_joined(op: Any, weights: list[torch.Tensor], rows: int) -> bool:
    """Say whether one product gives the outputs of several, to numbers that show the rounding.

    Which kernel takes a weight may depend on how many outputs it has.
    """
    sizes = [len(weight) for weight in weights]
    whole = weights[0].new_empty(sum(sizes), weights[0].shape[1])
    has_bias = op.overloadpacket.__name__ == "addmv"
    for made, weight, bias in trials(whole[:1].expand(rows, -1), whole, has_bias):
        row = made[0] if rows == 1 else made.t()
        fixed = [weight] if bias is None else [bias, weight]
        parts = zip(*(tensor.split(sizes) for tensor in fixed), strict=True)
        singly = torch.cat([op(*part, row) for part in parts])
        if not torch.equal(op(*fixed, row), singly):
            return False
    return True


def _is_weight(tape: Tape, ref: Ref, inputs: int) -> bool:
    is_fixed = ref.entry is None and ref.place >= inputs
    return is_fixed and tape.outside[ref.place].dtype is torch.bfloat16


def _is_plain(named: Mapping[str, Any]) -> bool:
    return all(_PLAIN.get(name) == value for name, value in named.items())


def _weight(tape: Tape, number: int) -> torch.Tensor:
    weight: Ref = tape.entries[number].args[-2]
    return tape.outside[weight.place]


def _room(tape: Tape, group: Sequence[int]) -> int:
    """Count the elements that the weights of a group, and biases, take at most where they move."""
    columns = zip(*(tape.entries[number].args[:-1] for number in group), strict=True)
    tensors = [[tape.outside[ref.place] for ref in refs] for refs in columns]
    return sum(
        sum(part.numel() + _ALIGNED for part in parts)
        for parts in tensors
        if not _are_joined(parts)
    )


def _are_joined(parts: Sequence[torch.Tensor]) -> bool:
    """Say whether each tensor follows the one before it in memory that lies on large pages."""
    ends = [part.data_ptr() + part.nbytes for part in parts]
    follow = all(part.data_ptr() == end for part, end in zip(parts[1:], ends[:-1], strict=True))
    whole = {part.untyped_storage().data_ptr() for part in parts}
    is_large = parts[0].untyped_storage().nbytes() >= LEAST_BYTES
    return follow and is_large and len(whole) == 1 and all(p.is_contiguous() for p in parts)


def _fuse(
    tape: Tape,
    numbers: list[int],
    done: Rewriting,
    outside: list[torch.Tensor],
    block: _Block,
) -> None:
    first = tape.entries[numbers[0]]
    fixed: list[Ref] = []
    for place in range(len(first.args) - 1):
        parts = [tape.outside[tape.entries[number].args[place].place] for number in numbers]
        fixed.append(Ref(None, len(outside)))
        outside.append(block.joined(parts))
    product = done.add(replace(first, args=(*fixed, done.renewed(first.args[-1]))))
    begin = 0
    for number in numbers:
        end = begin + len(_weight(tape, number))
        done.add(Entry(torch.ops.aten.slice.Tensor, (product, 0, begin, end), {}, None), number)
        begin = end
