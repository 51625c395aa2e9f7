"""Say how an op writes its result to memory that is there, by ops of the same arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from worker.model.amx_products import AmxProduct
from worker.model.attention import Attention, are_whole, attention, op_of_one, shape_of
from worker.model.lane_op import MOST_STEP_ROWS, ROUNDED_LINEAR, op_of_step
from worker.model.lane_program import program, records_bytes
from worker.model.lane_text import INT4, INT8, LANES
from worker.model.native_ops import NoNativeOps
from worker.model.tape import Entry, Opaque, Ref
from worker.model.tape_products import QuickProduct

_ATEN = torch.ops.aten
# They only copy, but for the type.
_COPIES = frozenset((_ATEN._to_copy, _ATEN.to, _ATEN.clone))
# For a number in the place of a tensor, torch makes a tensor at each call.
_OF_TWO = frozenset((_ATEN.add, _ATEN.sub, _ATEN.mul, _ATEN.div))
_ATTENTION = _ATEN.scaled_dot_product_attention.default
# No mask, no dropout, not causal.
_ATTENTION_DEFAULTS = [None, 0.0, False]
_ATTENTION_NAMED = {"scale": None, "enable_gqa": False}
_MAYBE_TENSORS = "List[Optional[Tensor]]"


class Writes:
    """Ops that write.

    Args:
        values: what each tensor of the tape is at some position.
        ref_to: gives the ref of a tensor that stays.
    """

    def __init__(
        self, values: Mapping[Ref, torch.Tensor], ref_to: Callable[[torch.Tensor], Ref]
    ) -> None:
        self._values, self._ref_to = values, ref_to
        self._writing: dict[Any, Any] = {}
        self._numbers: dict[tuple[float, int], Ref] = {}
        self._scratches: dict[int, Ref] = {}

    def can_write(self, entry: Entry) -> bool:
        """Say whether there are such ops for `entry`."""
        if isinstance(entry.op, AmxProduct):
            return entry.op.takes(self._values[entry.args[1]])
        if isinstance(entry.op, (Opaque, QuickProduct)):
            return False
        if entry.op is _ATTENTION:
            return self._attention(entry) is not None
        if entry.op is ROUNDED_LINEAR:
            return self._is_step(entry)
        if entry.op not in self._writing:
            self._writing[entry.op] = _writing(entry.op)
        is_copy = entry.op.overloadpacket in _COPIES
        return is_copy or self._writing[entry.op] is not None

    def looked_at(self, entry: Entry) -> Sequence[Ref]:
        """Return what has to lie in the same way at each position for `can_write` to hold."""
        if isinstance(entry.op, AmxProduct):
            return entry.args[1:]
        return entry.args[:1] if entry.op in (_ATTENTION, ROUNDED_LINEAR) else ()

    def of(self, entry: Entry, taken: Entry, buffer: torch.Tensor) -> Iterator[Entry]:
        """Give what does `entry`, whose arguments are those of `taken` by now, into `buffer`."""
        out = self._ref_to(buffer)
        packet = entry.op.overloadpacket
        if isinstance(entry.op, AmxProduct):
            size = entry.op.scratch_bytes(self._values[entry.args[0]])
            scratch = (self._scratch(size),) if size else ()
            yield Entry(entry.op.op, (entry.op.address, *taken.args, *scratch, out), {}, None)
        elif entry.op is _ATTENTION:
            found = self._attention(entry)
            assert found is not None
            scratch = (self._scratch(found.scratch_bytes),)
            yield Entry(op_of_one(), (found.one, *taken.args[:3], *scratch, out), {}, None)
        elif entry.op is ROUNDED_LINEAR:
            yield self._step(entry, taken, out)
        elif packet in _COPIES:
            yield _copy(out, taken.args[0])
        elif packet is _ATEN.cat:
            begin, dim = 0, entry.args[1] if len(entry.args) > 1 else 0
            for part, ref in zip(entry.args[0], taken.args[0], strict=True):
                size = self._values[part].shape[dim]
                yield _copy(self._ref_to(buffer.narrow(dim, begin, size)), ref)
                begin += size
        elif entry.op is _ATEN.mean.dim and not entry.named and buffer.dtype is torch.float32:
            count = self._values[entry.args[0]].numel() // buffer.numel()
            yield Entry(_ATEN.sum.IntList_out, taken.args, {"out": out}, None)
            by = self._number(count, buffer)
            yield Entry(_ATEN.div.out, (out, by), {"out": out}, None)
        else:
            args = taken.args
            if packet in _OF_TWO and self._is_by_number(entry, buffer):
                args = (args[0], self._number(args[1], buffer), *args[2:])
            named = {**taken.named, "out": out}
            yield Entry(self._writing[entry.op], args, named, None)

    def _attention(self, entry: Entry) -> Attention | None:
        """Return what attends one position as `entry` does, if there is such."""
        args = [*entry.args, *_ATTENTION_DEFAULTS[len(entry.args) - 3 :]]
        named = {**_ATTENTION_NAMED, **entry.named}
        query, keys, values = (self._values[ref] for ref in args[:3])
        is_plain = args[3:] == _ATTENTION_DEFAULTS and named.keys() == _ATTENTION_NAMED.keys()
        if not is_plain or query.dim() != 4 or query.shape[2] != 1:
            return None
        if not are_whole(keys, values):
            return None
        shape = shape_of(query, keys, values, named["scale"])
        if shape is None or not (named["enable_gqa"] or shape.shared == 1):
            return None
        return attention(shape)

    def _is_step(self, entry: Entry) -> bool:
        """Say whether rounded weights, none of them to fill up, multiply a few rows."""
        x, weight = (self._values[ref] for ref in entry.args[:2])
        rows = x.numel() // x.shape[-1]
        fits = rows <= MOST_STEP_ROWS and len(weight) * LANES == entry.args[3]
        if not fits or not x.is_contiguous():
            return False
        with suppress(NoNativeOps):  # torch's own way to ops is there all the same
            op_of_step()
            return True
        return False

    def _step(self, entry: Entry, taken: Entry, out: Ref) -> Entry:
        x, _, scales = (self._values[ref] for ref in entry.args[:3])
        inputs = x.shape[-1]
        rows = x.numel() // inputs
        records = self._scratch(records_bytes(rows, inputs))
        code = program(INT8 if len(scales) else INT4)
        given, weight, by = taken.args[:3]
        args = (weight, by, given, records, out, rows, torch.get_num_threads())
        return Entry(op_of_step(), (code.step_address, *args), {}, None)

    def _scratch(self, size: int) -> Ref:
        """Return memory of so many bytes, whose content no op takes over from another."""
        if size not in self._scratches:
            self._scratches[size] = self._ref_to(torch.empty(size, dtype=torch.uint8))
        return self._scratches[size]

    def _is_by_number(self, entry: Entry, buffer: torch.Tensor) -> bool:
        """Say whether the second argument is a number that a tensor holds exactly as well.

        In narrower types a number is kept wider than a tensor would.
        """
        first, second = entry.args[:2]
        is_number = type(second) in (int, float)
        kinds = {buffer.dtype, self._values[first].dtype} if isinstance(first, Ref) else set()
        return is_number and kinds == {torch.float32}

    def _number(self, number: float, like: torch.Tensor) -> Ref:
        """Return a tensor of that number with the dimensions of `like`, which is of float32."""
        key = (number, like.dim())
        if key not in self._numbers:
            made = torch.full((1,) * like.dim(), number, dtype=torch.float32)
            self._numbers[key] = self._ref_to(made)
        return self._numbers[key]


def _copy(target: Ref, source: Any) -> Entry:
    return Entry(_ATEN.copy_.default, (target, source), {}, None)


def _writing(op: Any) -> Any:
    """Return the op of the same arguments that writes to `out`, if torch has a kernel for it.

    Without one, torch makes the result and copies it.
    """
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments]
    if any(
        kind == _MAYBE_TENSORS for _, kind in wanted
    ):  # TorchScript takes lists of tensors alone
        return None
    for name in op.overloadpacket.overloads():
        found = getattr(op.overloadpacket, name)
        given = found._schema.arguments
        out = [a.name for a in given if a.is_out]
        rest = [(a.name, str(a.type)) for a in given if not a.is_out]
        if out == ["out"] and rest == wanted and _has_kernel(found):
            return found
    return None


def _has_kernel(op: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CPU"))
