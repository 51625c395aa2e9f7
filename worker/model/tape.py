"""Write down the ops of a forward, so that they can be done again without the model's Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Torch's own ops, and ours (`lane_op`).
_NAMESPACES = ("aten", "stageline")
# Their results, or how large those are, follow from what the numbers are.
_BY_DATA = frozenset(
    """
    _local_scalar_dense bernoulli equal is_nonzero item masked_select multinomial
    nonzero normal rand randn unique unique2
    """.split()
)


class CannotReplay(Exception):
    """The forward does something that a tape of it could not do again."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands for a tensor: the result `place` of entry `entry`, or outside one number `place`."""

    entry: int | None
    place: int


@dataclass(frozen=True, slots=True)
class _Schema:
    is_mutable: bool = False


class Opaque:
    """Stands in the place of an op for a call whose ops are not written down.

    It writes to none of the tensors that it is given in the tape.

    Args:
        name: of the call.
        form: takes what the call takes, and gives zeros in the form of its result.
    """

    def __init__(self, name: str, form: Callable[..., torch.Tensor]) -> None:
        self.__name__ = name
        self.form = form
        self._schema = _Schema()

    @property
    def overloadpacket(self) -> Opaque:
        """Itself: it has no overloads."""
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One op: tensors in its arguments are `Ref`s, also within lists.

    `results` says how many tensors it gives, in a list or tuple; None is a single tensor.
    """

    op: Any
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    results: int | None

    @property
    def is_mutable(self) -> bool:
        """Whether it writes to one of its arguments."""
        return bool(self.op._schema.is_mutable)


@dataclass(frozen=True, eq=False)
class Tape:
    """The ops of one forward in order.

    `outside` are the tensors that no op gave: first the inputs, then weights and tables.
    """

    entries: Sequence[Entry]
    outside: Sequence[torch.Tensor]
    output: Ref


@dataclass(eq=False)
class _Known:
    refs: dict[int, Ref] = field(default_factory=dict)
    # an id is good as long as its tensor lives
    alive: list[torch.Tensor] = field(default_factory=list)

    def add(self, tensor: torch.Tensor, ref: Ref) -> None:
        self.refs[id(tensor)] = ref
        self.alive.append(tensor)


class TapeRecorder(TorchDispatchMode):
    """Writes down every op while active; `inputs` are the tensors that change between forwards.

    Raises:
        CannotReplay: from an op whose result follows from the numbers in a way of its own.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = _Known()
        self._entries: list[Entry] = []
        self._outside: list[torch.Tensor] = []
        for tensor in inputs:
            self._ref(tensor)

    def tape(self, output: torch.Tensor) -> Tape:
        """Return what was written down; `output` is what the forward gave."""
        return Tape(self._entries, self._outside, self._ref(output))

    def opaque(self, op: Opaque, args: Sequence[Any], result: torch.Tensor) -> None:
        """Write down one call for ops that were not watched."""
        self._give(op, tuple(self._taken(value) for value in args), {}, result)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one op and write it down."""
        name = func.overloadpacket.__name__.strip("_")
        if func.namespace not in _NAMESPACES or name in _BY_DATA or f"_{name}" in _BY_DATA:
            raise CannotReplay(f"op {func}")
        if name in ("index", "index_put") and any(_is_choice(index) for index in args[1]):
            raise CannotReplay(f"op {func}")
        taken = tuple(self._taken(value) for value in args)
        named = {key: self._taken(value) for key, value in (kwargs or {}).items()}
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and id(result) in self._known.refs:
            # written in place, or a conversion to what it is already
            if func._schema.is_mutable:
                self._entries.append(Entry(func, taken, named, None))
            return result
        self._give(func, taken, named, result)
        return result

    def _give(self, func: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        tensors = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(tensors, (list, tuple)) or not all(map(torch.is_tensor, tensors)):
            raise CannotReplay(f"op {func}, which gives a {type(result).__name__}")
        number = len(self._entries)
        count = None if isinstance(result, torch.Tensor) else len(tensors)
        self._entries.append(Entry(func, args, named, count))
        for place, tensor in enumerate(tensors):
            self._known.add(tensor, Ref(number, place))

    def _taken(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._ref(value)
        if isinstance(value, (list, tuple)):
            return [self._taken(inner) for inner in value]
        return value

    def _ref(self, tensor: torch.Tensor) -> Ref:
        found = self._known.refs.get(id(tensor))
        if found is None:
            found = Ref(None, len(self._outside))
            self._outside.append(tensor)
            self._known.add(tensor, found)
        return found


def _is_choice(index: torch.Tensor | None) -> bool:
    """Say whether an index is true or false at each place, in place of numbers."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


@dataclass(frozen=True, slots=True)
class Later:
    """Stands for an integer that is so much more than the position."""

    offset: int


def merged(first: Tape, second: Tape, inputs: int, positions: tuple[int, int]) -> Tape:
    """Return the tape of any position, from those of two; integers that move along are `Later`.

    Args:
        inputs: how many of the outside tensors change between forwards.

    Raises:
        CannotReplay: the two differ in more than that.
    """
    if len(first.entries) != len(second.entries) or first.output != second.output:
        raise CannotReplay(f"{len(first.entries)} ops at one position, {len(second.entries)} later")
    if len(first.outside) != len(second.outside):
        raise CannotReplay("tables that are made anew at each position")
    for one, other in zip(first.outside[inputs:], second.outside[inputs:], strict=True):
        if one is not other and not (one.shape == other.shape and torch.equal(one, other)):
            raise CannotReplay("a table that is another at each position")
    entries = []
    for one_entry, other_entry in zip(first.entries, second.entries, strict=True):
        if one_entry.op is not other_entry.op or one_entry.results != other_entry.results:
            raise CannotReplay(f"op {one_entry.op} at one position, {other_entry.op} later")
        args = _merged(one_entry.args, other_entry.args, positions)
        named = {
            key: _merged(value, other_entry.named[key], positions)
            for key, value in one_entry.named.items()
        }
        entries.append(Entry(one_entry.op, tuple(args), named, one_entry.results))
    return Tape(entries, first.outside, first.output)


def _merged(one: Any, other: Any, positions: tuple[int, int]) -> Any:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            raise CannotReplay("lists whose length changes with the position")
        return [_merged(a, b, positions) for a, b in zip(one, other, strict=True)]
    if type(one) is type(other) and (one == other or one is other):
        return one
    if type(one) is int and type(other) is int and other - one == positions[1] - positions[0]:
        return Later(one - positions[0])
    raise CannotReplay(f"an argument that is {one} at one position and {other} later")


def refs_in(value: Any) -> Iterator[Ref]:
    """Give every `Ref` in arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from refs_in(inner)
    elif isinstance(value, Mapping):
        yield from refs_in(list(value.values()))
