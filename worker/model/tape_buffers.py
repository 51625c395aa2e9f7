"""Have a tape write its results to memory that stays, so that a step allocates hardly any.

To allocate the result of a small op takes as long as the op, and making a view of it half as long.
What has the same form at each position is written to one of a few buffers, which layers share, and
views of buffers are made once. What the kernels allocate themselves is viewed where it is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from worker.model.amx_products import AmxProduct
from worker.model.tape import CannotReplay, Entry, Later, Ref, Tape, refs_in
from worker.model.tape_cut import moved, walked
from worker.model.tape_fuse import Rewriting
from worker.model.tape_writes import Writes

_ATEN = torch.ops.aten
_ALIGNED_BYTES = 64


def buffered(tape: Tape, steps: Mapping[int, Sequence[torch.Tensor]], fixed: int) -> Tape:
    """Return a tape that does the same, for one request after the other.

    Args:
        tape: of any position.
        steps: inputs of the tape at two positions; what is alike at both has a buffer.
        fixed: how many of the inputs come before the stores of the cache.
    """
    values, later = (walked(tape, inputs, at) for at, inputs in steps.items())
    inputs = len(next(iter(steps.values())))
    moving = moved(values, later, range(fixed, inputs))
    return _Buffering(tape, values, moving, inputs).done()


def buffered_alike(tape: Tape, inputs: Sequence[torch.Tensor]) -> Tape:
    """Do what `buffered` does with a tape that has the same forms at all positions."""
    return _Buffering(tape, walked(tape, inputs, 0), set(), len(inputs)).done()


class _Buffering:
    """A tape on its way."""

    def __init__(
        self, tape: Tape, values: Mapping[Ref, torch.Tensor], moving: set[Ref], inputs: int
    ) -> None:
        self._tape, self._values, self._moving = tape, values, moving
        self._rewriting = Rewriting()
        self._roots = _roots(tape, values)
        self._last = _last_reads(tape, self._roots)
        self._outside = list(tape.outside)
        self._places: dict[Any, Ref] = {}
        # tensors that stay where they are, by their old refs
        self._held = {Ref(None, i): t for i, t in enumerate(tape.outside) if i >= inputs}
        # views of what is allocated at each step
        self._viewed: set[Ref] = set()
        self._free: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._expiring: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._writes = Writes(values, self._ref_to)

    def done(self) -> Tape:
        """Return the tape with its buffers."""
        for number, entry in enumerate(self._tape.entries):
            for block in self._expiring.pop(number - 1, ()):
                self._free[block.nbytes].append(block)
            if not self._is_view_made(number, entry) and not self._is_written(number, entry):
                self._rewriting.add(self._renewed_entry(entry), number)
        output = self._renewed(self._tape.output)
        if self._roots[self._tape.output] in self._held:  # the next step writes over it
            output = self._rewriting.add(Entry(_ATEN.clone.default, (output,), {}, None))
        return Tape(self._rewriting.entries, self._outside, output)

    def _is_view_made(self, number: int, entry: Entry) -> bool:
        """Take an op that gives views of what stays in its place, or of what is allocated."""
        own = [Ref(number, place) for place in range(entry.results or 1)]
        slides = _has_later([entry.args, entry.named]) or not self._moving.isdisjoint(own)
        if entry.is_mutable or slides or any(self._roots[ref] == ref for ref in own):
            return False
        source = entry.args[0]
        if source in self._held:
            made = entry.op(self._held[source], *entry.args[1:], **entry.named)
            tensors = [made] if entry.results is None else made
            self._held.update(zip(own, tensors, strict=True))
            return True
        root = self._roots[source]
        stays = root in self._rewriting.became and root not in self._moving
        if stays and (source == root or source in self._viewed):
            self._viewed.update(own)
            return True
        return False

    def _is_written(self, number: int, entry: Entry) -> bool:
        """Take an op whose result has a buffer."""
        own = Ref(number, 0)
        may = entry.results is None and not entry.is_mutable and own not in self._moving
        if not may or self._roots[own] != own or not _is_dense(self._values[own]):
            return False
        if not self._writes.can_write(entry):
            return False
        # what was looked at holds for the forms of one position
        if any(ref in self._moving for ref in self._writes.looked_at(entry)):
            if isinstance(entry.op, AmxProduct) and entry.op.rows > 1:  # its result lies otherwise
                raise CannotReplay("rows that lie another way at each position")
            return False
        taken = self._renewed_entry(entry)
        self._held[own] = self._buffer(self._values[own], self._last.get(own, number))
        for write in self._writes.of(entry, taken, self._held[own]):
            self._rewriting.add(write)
        return True

    def _buffer(self, like: torch.Tensor, last: int) -> torch.Tensor:
        """Return memory in the form of `like` that nobody else uses up to entry `last`."""
        size_bytes = -(-like.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        free = self._free[size_bytes]
        block = free.pop() if free else torch.empty(size_bytes, dtype=torch.uint8)
        self._expiring[last].append(block)
        return block[: like.nbytes].view(like.dtype).as_strided(like.shape, like.stride())

    def _renewed_entry(self, entry: Entry) -> Entry:
        named = {name: self._renewed(value) for name, value in entry.named.items()}
        return replace(entry, args=tuple(map(self._renewed, entry.args)), named=named)

    def _renewed(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._renewed(inner) for inner in value]
        if not isinstance(value, Ref) or value.entry is None:
            return value
        if value in self._held:
            return self._ref_to(self._held[value])
        if value in self._viewed and value not in self._rewriting.became:
            form = self._values[value]
            root = self._rewriting.became[self._roots[value]]
            args = (root, list(form.shape), list(form.stride()), form.storage_offset())
            view = self._rewriting.add(Entry(_ATEN.as_strided.default, args, {}, None))
            self._rewriting.became[value] = view
        return self._rewriting.became[value]

    def _ref_to(self, tensor: torch.Tensor) -> Ref:
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in self._places:
            self._places[key] = Ref(None, len(self._outside))
            self._outside.append(tensor)
        return self._places[key]


def _roots(tape: Tape, values: Mapping[Ref, torch.Tensor]) -> dict[Ref, Ref]:
    """Return for each tensor the one whose memory it is a view of; itself where it is none."""
    first: dict[int, Ref] = {}
    found = {}
    outside = (Ref(None, place) for place in range(len(tape.outside)))
    for ref in [*outside, *_results(tape)]:
        found[ref] = first.setdefault(int(values[ref].untyped_storage()._cdata), ref)
    return found


def _results(tape: Tape) -> Iterator[Ref]:
    for number, entry in enumerate(tape.entries):
        yield from (Ref(number, place) for place in range(entry.results or 1))


def _last_reads(tape: Tape, roots: Mapping[Ref, Ref]) -> dict[Ref, int]:
    """Return the last entry that reads each root or a view of it; the output is read last."""
    found = {}
    for number, entry in enumerate(tape.entries):
        for ref in refs_in([*entry.args, entry.named]):
            found[roots[ref]] = number
    return found | {roots[tape.output]: len(tape.entries)}


def _has_later(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_later, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_later, value))
    return isinstance(value, Later)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Say whether it fills its memory without holes, on a CPU."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in steps)
    return tensor.device.type == "cpu" and tensor.numel() > 0 and span == tensor.numel()
