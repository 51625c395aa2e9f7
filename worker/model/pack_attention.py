"""What attends the rows of a pack that runs without the model's Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from worker.model.attend_text import AttendShape
from worker.model.attention import UNUSED_ROW, Attention, are_whole, op_of_rows, plan_row
from worker.model.tape import CannotReplay, Opaque


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *how: Any) -> Any:
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])


ATTEND = Opaque("attend", _attended)
# What a pack takes beside tensors that change and weights: keys and values of each layer and
# request; of each row whose it is and how many positions it sees; how many requests there are; and
# how many of the stores the layers before have had.
# `plan` has the same for `attention.op_of_rows`, where that is what attends.
MORE = {
    "stores": "List[Tensor]",
    "owners": "List[int]",
    "ends": "List[int]",
    "members": "int",
    "layer": "List[int]",
    "plan": "Tensor",
}
_GIVEN = """
def attend(query: Tensor, key: Tensor, value: Tensor, scale: Optional[float], shares_heads: bool,
           stores: List[Tensor], owners: List[int], ends: List[int], members: int,
           layer: List[int], plan: Tensor) -> Tensor:
    now = layer[0]
    layer[0] = now + 1
"""
_ATTEND = f"""{_GIVEN}
    outputs = torch.jit.annotate(List[Tensor], [])
    first = 2 * members * now
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


def source_of(found: Attention | None) -> str:
    """Return the source of `attend`: by code of our own, or as torch's loop where there is none."""
    if found is None:
        return _ATTEND
    op = op_of_rows()
    return f"""{_GIVEN}
    out = torch.empty([1, query.size(2), query.size(1), query.size(3)],
                      dtype=query.dtype, device=query.device)
    scratch = torch.empty([{found.scratch_bytes}], dtype=torch.uint8)
    torch.ops.{op.namespace}.{op.overloadpacket.__name__}(
        {found.rows}, query, key, value, plan, scratch, out, now)
    return out
"""


def plan_of(
    shape: AttendShape,
    stores: Sequence[torch.Tensor],
    owners: Sequence[int],
    ends: Sequence[int],
    members: int,
    rows: int,
) -> torch.Tensor:
    """Return where the keys and values of each layer and row are, int64 `[layers, rows, 5]`.

    Args:
        shape: of what attends.
        stores: of each layer, keys of each member and then values.
        owners: of each row that is used, which member it is of.
        ends: of each row that is used, how many positions it sees.
        members: how many requests there are.
        rows: of the pack.

    Raises:
        CannotReplay: a store is of another kind, has less room, or does not lie in one piece.
    """
    needed = [0] * members
    for i, end in zip(owners, ends, strict=True):
        needed[i] = max(needed[i], end)
    found = []
    for first in range(0, len(stores), 2 * members):
        own = []
        for i, positions in enumerate(needed):
            pair = stores[first + i], stores[first + members + i]
            if not all(_holds(store, shape, positions) for store in pair):
                raise CannotReplay(f"keys and values {[list(store.shape) for store in pair]}")
            own.append(plan_row(*pair))
        used = [[*own[i], end] for i, end in zip(owners, ends, strict=True)]
        found.append([*used, *[UNUSED_ROW] * (rows - len(used))])
    return torch.tensor(found, dtype=torch.int64)


def _holds(store: torch.Tensor, shape: AttendShape, positions: int) -> bool:
    """Say whether it is a store of such heads with room for so many positions: it is written to."""
    batch, heads, room, dim = store.shape
    is_of_shape = (batch, heads, dim) == (1, shape.kv_heads, shape.head_dim) and room >= positions
    return is_of_shape and store.dtype is torch.bfloat16 and are_whole(store)
