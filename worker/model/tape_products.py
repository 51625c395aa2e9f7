"""Do products by small weights through oneDNN's graphs, which start sooner.

At each `aten::mv` oneDNN looks up its kernel and allocates scratch memory anew: some 30 us, in
which a core reads half a megabyte. A product that TorchScript gives to oneDNN as a graph is looked
up once, and starts in some 10 us. The kernel is the same one and takes the weight as it lies in
memory; it is compared with `mv` on numbers that cancel each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.jit._fuser import optimized_execution

from worker.model.amx_products import MOST_BYTES, AmxProduct, amx_products
from worker.model.row_kernels import trials
from worker.model.tape import Entry, Ref, Tape
from worker.model.tape_fuse import Rewriting

# Of the time that a product by a larger weight takes, 20 us are a fiftieth or less.
_MOST_BYTES = 16 << 20
# The first call watches the shapes, the second has the graph made, the third uses it.
_CALLS = 3
_MARK = "oneDNNFusionGroup"


@dataclass(frozen=True)
class QuickProduct:
    """Stands in the place of the op `mm`, for one shape of weights.

    Attributes:
        name: that TorchScript knows it by.
        function: what torch has compiled.
    """

    name: str
    function: Any = field(repr=False, compare=False)
    overloadpacket: Any = field(default=torch.ops.aten.mm, repr=False, compare=False)
    _schema: Any = field(default=torch.ops.aten.mm.default._schema, repr=False, compare=False)

    def __call__(self, weight: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        """Return `[outputs, 1]` for a weight `[outputs, width]` and a column `[width, 1]`."""
        product: torch.Tensor = self.function(weight, column)
        return product


def with_own_products(tape: Tape, inputs: int, rows_of_many: int = 0) -> Tape:
    """Return the tape with a product of our own in the place of each `mv` or `mm` that has one.

    Args:
        inputs: how many of the outside tensors change between steps.
        rows_of_many: how many columns those have that an `mm` takes, each whole in memory.
    """
    weights = list(_weights(tape, inputs, MOST_BYTES))
    of_rows = {
        rows: amx_products([w for w, e in weights if (e.op is _MM) is (rows > 1)], rows)
        for rows in {1, rows_of_many} - {0}
    }

    def product_of(weight: torch.Tensor, entry: Entry) -> AmxProduct | None:
        rows = rows_of_many if entry.op is _MM else 1
        return of_rows.get(rows, {}).get(weight.shape)

    return _replaced(tape, inputs, MOST_BYTES, product_of)


def with_quick_products(tape: Tape, inputs: int, rows_of_many: int = 0) -> Tape:
    """Return the tape with a quick product in the place of each `mv` or `mm` by a small weight.

    Those of shapes whose bits would differ stay, and all do where torch has no such graphs.

    Args:
        inputs: how many of the outside tensors change between steps.
        rows_of_many: how many columns those have that an `mm` takes, each whole in memory.
    """
    found: dict[tuple[torch.Size, int], QuickProduct | None] = {}

    def product_of(weight: torch.Tensor, entry: Entry) -> QuickProduct | None:
        key = (weight.shape, rows_of_many if entry.op is _MM else 1)
        if key not in found:
            found[key] = _quick_product(weight, key[1])
        return found[key]

    return _replaced(tape, inputs, _MOST_BYTES, product_of)


def _replaced(
    tape: Tape,
    inputs: int,
    most_bytes: int,
    product_of: Callable[[torch.Tensor, Entry], AmxProduct | QuickProduct | None],
) -> Tape:
    """Put products in the place of those by a weight where there is one."""
    done = Rewriting()
    for number, old in enumerate(tape.entries):
        entry = done.entry(old)
        weight = _weight(tape, entry, inputs, most_bytes)
        found = None if weight is None else product_of(weight, entry)
        if weight is None or found is None:
            done.add(entry, number)
        elif entry.op is _MM:
            done.add(Entry(found, entry.args, {}, None), number)
        else:
            fixed, row = entry.args
            column = done.add(Entry(_VIEW, (row, [weight.shape[1], 1]), {}, None))
            product = done.add(Entry(found, (fixed, column), {}, None))
            done.add(Entry(_VIEW, (product, [len(weight)]), {}, None), number)
    return Tape(done.entries, tape.outside, done.renewed(tape.output))


def _weights(tape: Tape, inputs: int, most_bytes: int) -> Iterator[tuple[torch.Tensor, Entry]]:
    for entry in tape.entries:
        weight = _weight(tape, entry, inputs, most_bytes)
        if weight is not None:
            yield weight, entry


_VIEW = torch.ops.aten.view.default
_MM = torch.ops.aten.mm.default


def _is_mv(entry: Entry) -> bool:
    return entry.op is torch.ops.aten.mv.default


def _weight(tape: Tape, entry: Entry, inputs: int, most_bytes: int) -> torch.Tensor | None:
    if not _is_mv(entry) and entry.op is not _MM:
        return None
    ref: Ref = entry.args[0]
    if ref.entry is not None or ref.place < inputs:
        return None
    weight = tape.outside[ref.place]
    fits = weight.dtype is torch.bfloat16 and weight.device.type == "cpu"
    return weight if fits and weight.is_contiguous() and weight.nbytes <= most_bytes else None


def _quick_product(weight: torch.Tensor, rows: int) -> QuickProduct | None:
    """Make one for weights of this shape; None if none is made or its bits differ from `mv`."""
    outputs, width = weight.shape
    name = f"product_{outputs}_{width}_{rows}"
    source = f"def {name}(weight, column):\n    return torch.ops.aten.mm(weight, column)\n"
    function = getattr(torch.jit.CompilationUnit(source), name)
    numbers = list(trials(weight.new_empty(rows, width), weight, False))
    like_rows, like_weight, _ = numbers[0]
    columns = like_rows.t() if rows > 1 else like_rows.view(width, 1)
    with _graphs_made(), optimized_execution(True):
        for _ in range(_CALLS):
            product = function(like_weight, columns)
    plan = function.get_debug_state().execution_plans
    made = any(_MARK in str(each.graph) for each in plan.values())
    if rows > 1:
        wanted = torch.mm(like_weight, columns)
    else:
        wanted = torch.mv(like_weight, like_rows[0])[:, None]
    return QuickProduct(name, function) if made and torch.equal(product, wanted) else None


@contextmanager
def _graphs_made() -> Iterator[None]:
    """Have torch make graphs of what it compiles, and nothing else that was not so before."""
    was = torch.jit.onednn_fusion_enabled()
    torch.jit.enable_onednn_fusion(True)
    try:
        yield
    finally:
        torch.jit.enable_onednn_fusion(was)
