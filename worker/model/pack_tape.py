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

from worker.model.pack_cache import Member
from worker.model.tape import CannotReplay, Opaque, Tape, TapeRecorder, merged
from worker.model.tape_buffers import buffered_alike
from worker.model.tape_fuse import fused, without_twins
from worker.model.tape_products import QuickProduct, with_quick_products
from worker.model.tape_script import function_of, script


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *how: Any) -> Any:
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


ATTEND = Opaque("attend", _attended)
# What a pack takes beside tensors that change and weights: keys and values of each layer and
# request; of each row whose it is and how many positions it sees; how many requests there are; and
# how many of the stores the layers before have had.
_MORE = {
    "stores": "List[Tensor]",
    "owners": "List[int]",
    "ends": "List[int]",
    "members": "int",
    "first_store": "List[int]",
}
_ATTEND = """
def attend(query: Tensor, key: Tensor, value: Tensor, scale: Optional[float], shares_heads: bool,
           stores: List[Tensor], owners: List[int], ends: List[int], members: int,
           first_store: List[int]) -> Tensor:
    outputs = torch.jit.annotate(List[Tensor], [])
    first = first_store[0]
    first_store[0] = first + 2 * members
    query_rows, key_rows, value_rows = query.split(1, 2), key.split(1, 2), value.split(1, 2)
    for row in range(len(owners)):
        keys = stores[first + owners[row]]
        values = stores[first + members + owners[row]]
        end = ends[row]
        keys.narrow(2, end - 1, 1).copy_(key_rows[row])
        values.narrow(2, end - 1, 1).copy_(value_rows[row])
        outputs.append(torch.ops.aten.scaled_dot_product_attention(
            query_rows[row], keys.narrow(2, 0, end), values.narrow(2, 0, end),
            None, 0.0, False, scale=scale, enable_gqa=shares_heads))
    unused = query.size(2) - len(owners)
    if unused > 0:
        shape = [query.size(0), query.size(1), unused, value.size(3)]
        outputs.append(torch.zeros(shape, dtype=query.dtype, device=query.device))
    return torch.cat(outputs, 2).transpose(1, 2).contiguous()
"""


class PackTape:
    """The short way of one kind of pack, as far as it is known."""

    def __init__(self) -> None:
        self._first: Tape | None = None
        self._first_inputs: list[torch.Tensor] = []
        # What was written down, in the forms that are left to be tried; the next one is the last.
        self._forms: list[Tape] = []
        self._inputs = 0
        self._others: list[torch.Tensor] = []
        self._run: Callable[..., torch.Tensor] | None = None
        # torch itself would not keep alive the functions that the short way calls
        self._functions: dict[str, Any] = {}
        self.is_refused = False
        self.is_proved = False

    @property
    def is_written(self) -> bool:
        """Whether it can be run, proved or not."""
        return self._run is not None

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
            self._forms.append(shortened(whole, inputs, rows))
        self._compile()

    def _compile(self) -> None:
        """Compile the next form.

        Raises:
            CannotReplay: none is left that can be.
        """
        while self._forms:
            tape = self._forms.pop()
            functions = {
                entry.op.name: entry.op.function
                for entry in tape.entries
                if isinstance(entry.op, QuickProduct)
            }
            with suppress(Exception):  # whatever torch makes of it, the model's code is there
                source = _ATTEND + script(tape, self._inputs, _MORE)
                self._run, self._functions = function_of(source, functions), functions
                self._others = list(tape.outside[self._inputs :])
                return
        raise CannotReplay("no form of it can be compiled, or gives the same bits")

    def run(self, inputs: Sequence[torch.Tensor], members: Sequence[Member]) -> torch.Tensor:
        """Do what the forward of a `RowPack` does, and count the rows in."""
        assert self._run is not None
        stores: list[torch.Tensor] = []
        layers = [[m.cache.layers[i] for i in m.cache.own_layers] for m in members]
        for of_layer in zip(*layers, strict=True):
            pairs = [
                layer.stores_with_room(member.count)
                for layer, member in zip(of_layer, members, strict=True)
            ]
            stores += [keys for keys, _ in pairs]
            stores += [values for _, values in pairs]
        owners = [i for i, member in enumerate(members) for _ in range(member.count)]
        ends = [member.start + row + 1 for member in members for row in range(member.count)]
        # what its optimizer finds is worth less than the half second that its first runs take
        with optimized_execution(False):
            output: torch.Tensor = self._run(
                list(inputs), self._others, stores, owners, ends, len(members), [0]
            )
        for member in members:
            member.cache.advance(member.count)
        return output


class Recording:
    """A pack that is being written down."""

    def __init__(self, recorder: TapeRecorder) -> None:
        self.recorder = recorder
        self.output: torch.Tensor | None = None

    def attended(self, args: Sequence[Any], output: torch.Tensor) -> None:
        """Write down an attention of all rows: query, key, value, scale, shared heads.

        Layers attend in the order of their caches.
        """
        self.recorder.opaque(ATTEND, args, output)


@contextmanager
def apart() -> Iterator[None]:
    """Leave the ops in the block out of what is written down."""
    with _disable_current_modes():
        yield


def shortened(tape: Tape, inputs: Sequence[torch.Tensor], rows: int) -> Tape:
    """Return a tape of fewer ops that allocates less; weights stay where they are."""
    short = fused(without_twins(tape, len(inputs)), len(inputs), rows=rows, moves=False)
    return buffered_alike(with_quick_products(short, len(inputs), rows), inputs)
