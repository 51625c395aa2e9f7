"""Run packs without the model's Python, as `decode_step` does for single positions.

The first two packs of a kind are written down op by op. Attention stands in the tape as one call:
a loop over rows, each with the caches of its own request. What else differs between the two packs
would be a position that is no input, and is refused. What was written down is made shorter, as
decode steps are. The third pack is worked on both ways, and only where every bit agrees is the
short way taken from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.jit._fuser import optimized_execution
from torch.utils._python_dispatch import _disable_current_modes

from worker.model.amx_products import AmxProduct
from worker.model.attend_text import AttendShape
from worker.model.attention import Attention, attention, shape_of
from worker.model.pack_attention import ATTEND, MORE, plan_of, source_of
from worker.model.pack_cache import Member
from worker.model.tape import CannotReplay, Tape, TapeRecorder, merged
from worker.model.tape_buffers import buffered_alike
from worker.model.tape_fuse import fused, without_twins
from worker.model.tape_products import QuickProduct, with_own_products, with_quick_products
from worker.model.tape_script import function_of, script


class PackTape:
    """The short way of one kind of pack, as far as it is known.

    Args:
        own: whether products and attention may be code of our own.
    """

    def __init__(self, *, own: bool = True) -> None:
        self._own = own
        self._first: Tape | None = None
        self._first_inputs: list[torch.Tensor] = []
        # What attends all rows in the shortened form; torch's loop where there is none.
        self._attention: Attention | None = None
        # What was written down, in the forms that are left to be tried; the next one is the last.
        self._forms: list[Tape] = []
        self._inputs = 0
        self._others: list[torch.Tensor] = []
        self._run: Callable[..., torch.Tensor] | None = None
        # torch itself would not keep alive the functions that the short way calls
        self._functions: dict[str, Any] = {}
        # What attends by a plan in the form that is run.
        self._planned: AttendShape | None = None
        self.is_refused = False
        self.is_proved = False

    @property
    def is_written(self) -> bool:
        """Whether it can be run, proved or not."""
        return self._run is not None

    @property
    def attends(self) -> bool:
        """Whether what is run attends by code of our own."""
        return self._planned is not None

    def refuse(self) -> None:
        """Never take the short way."""
        self.is_refused = True
        self._first, self._run, self._others = None, None, []
        self._first_inputs, self._functions, self._forms = [], {}, []

    def differs(self) -> None:
        """Hear that the short way gives other bits, or none: try the next form, if there is one."""
        try:
            self._compile()
        except CannotReplay:
            self.refuse()

    @contextmanager
    def writing(self, inputs: Sequence[torch.Tensor], rows: int) -> Iterator[Recording]:
        """Write down the pack of so many rows that runs in the block, on `inputs`.

        What is the same in both packs is taken for what never changes, so a second one on the same
        numbers does not count.

        Raises:
            CannotReplay: it cannot be done again without the model's code.
        """
        recording = Recording(TapeRecorder(inputs))
        yield recording
        assert recording.output is not None
        tape = recording.recorder.tape(recording.output)
        if self._first is None:
            self._first, self._first_inputs = tape, [given.clone() for given in inputs]
            return
        if any(map(torch.equal, self._first_inputs, inputs)):
            return
        whole = merged(self._first, tape, len(inputs), (0, 0))
        self._first, self._first_inputs = None, []
        self._forms, self._inputs = [whole], len(inputs)
        with suppress(Exception):  # what a model's ops cannot do: as they were
            self._forms.append(shortened(whole, inputs, rows, own=self._own))
            self._attention = recording.attention if self._own else None
        self._compile()

    def _compile(self) -> None:
        """Compile the next form.

        Raises:
            CannotReplay: none is left that can be.
        """
        while self._forms:
            tape, found = self._forms.pop(), self._attention
            self._attention = None
            functions = {
                entry.op.name: entry.op.function
                for entry in tape.entries
                if isinstance(entry.op, QuickProduct)
            }
            with suppress(Exception):  # whatever torch makes of it, the model's code is there
                source = source_of(found) + script(tape, self._inputs, MORE)
                self._run, self._functions = function_of(source, functions), functions
                self._planned = None if found is None else found.shape
                self._others = list(tape.outside[self._inputs :])
                return
        raise CannotReplay("no form of it can be compiled, or gives the same bits")

    def run(self, inputs: Sequence[torch.Tensor], members: Sequence[Member]) -> torch.Tensor:
        """Do what the forward of a `RowPack` does, and count the rows in.

        Raises:
            CannotReplay: a cache is of another kind than those of the packs that were written down.
        """
        assert self._run is not None
        layers: list[list[Any]] = [[m.cache.layers[i] for i in m.cache.own_layers] for m in members]
        roomy = [
            [layer.stores_with_room(member.count) for layer in own]
            for own, member in zip(layers, members, strict=True)
        ]
        stores: list[torch.Tensor] = [
            pair[which] for pairs in zip(*roomy, strict=True) for which in (0, 1) for pair in pairs
        ]
        owners = [i for i, member in enumerate(members) for _ in range(member.count)]
        ends = [member.start + row + 1 for member in members for row in range(member.count)]
        plan = torch.empty(0, dtype=torch.int64)
        if self._planned is not None:
            plan = plan_of(self._planned, stores, owners, ends, len(members), len(inputs[0][0]))
        # what its optimizer finds is worth less than the half second that its first runs take
        with optimized_execution(False):
            output: torch.Tensor = self._run(
                list(inputs), self._others, stores, owners, ends, len(members), [0], plan
            )
        for member in members:
            member.cache.advance(member.count)
        return output


class Recording:
    """A pack that is being written down."""

    def __init__(self, recorder: TapeRecorder) -> None:
        self.recorder = recorder
        self.output: torch.Tensor | None = None
        self._shapes: set[AttendShape | None] = set()

    @property
    def attention(self) -> Attention | None:
        """What attends in all layers; None where there is no such."""
        shape = next(iter(self._shapes)) if len(self._shapes) == 1 else None
        return None if shape is None else attention(shape)

    def attended(self, args: Sequence[Any], output: torch.Tensor) -> None:
        """Write down an attention of all rows: query, key, value, scale, shared heads.

        Layers attend in the order of their caches.
        """
        query, key, value, scale, shares_heads = args
        shape = shape_of(query, key, value, scale)
        shares = shape is not None and (shares_heads or shape.shared == 1)
        self._shapes.add(shape if shares else None)
        self.recorder.opaque(ATTEND, args, output)


@contextmanager
def apart() -> Iterator[None]:
    """Leave the ops in the block out of what is written down."""
    with _disable_current_modes():
        yield


def shortened(tape: Tape, inputs: Sequence[torch.Tensor], rows: int, *, own: bool = True) -> Tape:
    """Return a tape of fewer ops that allocates less; weights stay where they are.

    Args:
        tape: of packs of so many rows.
        inputs: of one of them.
        rows: how many there are.
        own: whether products may be code of our own.
    """
    short = without_twins(tape, len(inputs))
    if own:
        short = with_own_products(short, len(inputs), rows)
    # products of our own start soon, and each gives rows that nobody has to put side by side
    if not any(isinstance(entry.op, AmxProduct) for entry in short.entries):
        short = fused(short, len(inputs), rows=rows, moves=False)
    return buffered_alike(with_quick_products(short, len(inputs), rows), inputs)
