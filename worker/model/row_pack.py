"""Run positions of several requests in one forward, each as a forward of its own would.

Linears, norms, rotary tables and all else that works row by row take all rows at once, as far as
`row_ops` knows that to be exact. Attention takes them one after the other, each with the very call
a single position makes: against its own request's keys and values up to and including its own. So
do routed experts, whose kernels see more or fewer rows with the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from worker.model.interfaces import Interfaces
from worker.model.kv_layers import RewindableSlidingLayer
from worker.model.pack_cache import Member, PackCache, Update
from worker.model.pack_tape import Recording, apart
from worker.model.row_attention import attend_without_masks, reads_shared_heads
from worker.model.row_ops import NotPackable, RowOps
from worker.model.tape import CannotReplay


@dataclass(frozen=True, eq=False)
class RowMasks:
    """What a pack passes through the model as its attention mask: one mask for each row."""

    pack: RowPack
    rows: tuple[torch.Tensor | None, ...]

    @property
    def are_absent(self) -> bool:
        """Say whether every row sees all that its request holds."""
        return all(mask is None for mask in self.rows)


class RowPack:
    """One forward of `num_rows` rows: those of `members` in order, and others that nobody uses.

    Raises:
        NotPackable: from within the forward, where the model goes other ways.
    """

    def __init__(
        self,
        interfaces: Interfaces,
        cache: PackCache,
        members: Sequence[Member],
        num_rows: int,
    ) -> None:
        self._interfaces = interfaces
        self._cache = cache
        self._members = members
        self._num_rows = num_rows
        # of each row: whose it is, and how many positions it sees without a window
        self._rows = [
            (i, member.start + row + 1)
            for i, member in enumerate(members)
            for row in range(member.count)
        ]
        self._attended: list[int] = []
        self._ops: RowOps | None = None
        self._recording: Recording | None = None

    @contextmanager
    def running(
        self, ops: RowOps | None = None, recording: Recording | None = None
    ) -> Iterator[None]:
        """Have the model work on rows in the block, which is one forward.

        It is watched by `ops` or written down by `recording`.
        """
        self._ops, self._recording = ops, recording
        replaced = self._interfaces.replaced(self._attend, self._masks, self._route)
        holding = self._cache.holding(self._members, self._num_rows, self._one_row)
        mode = ops if recording is None else recording.recorder
        with holding, replaced, mode or nullcontext():
            yield
        if tuple(self._attended) != self._cache.own_layers:
            raise NotPackable(
                f"layers {self._attended} attended, the cache holds {self._cache.own_layers}"
            )

    @contextmanager
    def _one_row(self) -> Iterator[None]:
        """Leave the ops in the block alone: they are those of a single position."""
        if self._recording is not None:
            with apart():
                yield
        elif self._ops is not None:
            with self._ops.paused():
                yield
        else:
            yield

    def _masks(
        self,
        *,
        q_length: int,
        kv_length: int,
        q_offset: int,
        kv_offset: int,
        attention_mask: torch.Tensor | None = None,
        **rest: Any,
    ) -> RowMasks:
        """Make the mask of each row as its own forward would."""
        window = self._window(rest.get("local_size"))
        start = self._members[0].start
        begin = _begin(start + 1, window)
        asked = (q_length, q_offset, kv_length, kv_offset)
        if asked != (self._num_rows, start, start + self._num_rows - begin, begin):
            raise NotPackable(f"masks of sizes {asked} at {start} + {self._num_rows} rows")
        if attention_mask is not None:
            raise NotPackable("a mask of positions")
        make = self._interfaces.mask_function()
        rows = []
        with self._one_row():
            for _, end in self._rows:
                begin = _begin(end, window)
                sizes = {"kv_length": end - begin, "kv_offset": begin}
                rows.append(make(q_length=1, q_offset=end - 1, **sizes, **rest))
        return RowMasks(self, tuple(rows))

    def _window(self, local_size: int | None) -> int | None:
        layers: list[Any] = self._cache.layers
        sliding = [layer for layer in layers if getattr(layer, "is_sliding", False)]
        windows = {layer.sliding_window for layer in sliding}
        if local_size is None or not windows:
            return None
        if windows != {local_size}:
            raise NotPackable(f"a mask for {local_size} positions, windows of {windows}")
        return local_size

    def _attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        **rest: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attend row by row: `query` is `[1, heads, rows, dim]`, the result `[1, rows, ...]`."""
        if not isinstance(attention_mask, RowMasks) or attention_mask.pack is not self:
            raise NotPackable("an attention mask that was not made by the library")
        index: Any = module.layer_idx
        update = self._checked(self._cache.update_of(index), query, key, value, rest)
        unused = self._num_rows - len(self._rows)
        with self._one_row():
            queries = query.split(1, 2)
            seen = self._seen(self._cache.layers[index], update)
            output = None
            if self._interfaces.attention == "sdpa" and attention_mask.are_absent:
                output = attend_without_masks(module, queries, seen, unused, rest)
            if self._recording is not None:
                if output is None:
                    raise CannotReplay("attention that takes more than a loop over rows")
            elif output is None:
                output = self._one_by_one(module, queries, seen, attention_mask, rest)
        if self._recording is not None:
            how = (rest.get("scaling"), reads_shared_heads(module))
            self._recording.attended((query, key, value, *how), output)
        self._attended.append(index)
        return output, None

    def _one_by_one(
        self,
        module: nn.Module,
        queries: Sequence[torch.Tensor],
        seen: Sequence[tuple[torch.Tensor, torch.Tensor]],
        masks: RowMasks,
        rest: Mapping[str, Any],
    ) -> torch.Tensor:
        attend = self._interfaces.attention_function(module)
        outputs = []
        for query, (keys, values), mask in zip(queries, seen, masks.rows, strict=False):
            if mask is not None and mask.shape[-1] != keys.shape[2]:
                raise NotPackable(f"a mask of {mask.shape[-1]} for {keys.shape[2]} positions")
            outputs.append(attend(module, query, keys, values, mask, **rest)[0])
        if (unused := self._num_rows - len(outputs)) > 0:
            outputs.append(outputs[0].new_zeros(1, unused, *outputs[0].shape[2:]))
        return torch.cat(outputs, 1)

    def _seen(self, layer: Any, update: Update) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the keys and values that each row sees."""
        window = layer.sliding_window if isinstance(layer, RewindableSlidingLayer) else None
        found = []
        for i, end in self._rows:
            member = self._members[i]
            keys, values = update.held[i]
            first = member.start + member.count - keys.shape[2]
            begin = _begin(end, window)
            if begin < first:
                raise NotPackable(f"a row sees {begin}:{end}, keys begin at {first}")
            if member.count > 1 or begin > first:
                keys = keys.narrow(2, begin - first, end - begin)
                values = values.narrow(2, begin - first, end - begin)
            found.append((keys, values))
        return found

    def _checked(
        self,
        update: Update | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rest: Mapping[str, Any],
    ) -> Update:
        """See that attention reads the cache itself, and nothing else that differs by row.

        Keys computed from what is cached would be computed by kernels for another number of rows.
        """
        if update is None or key is not update.keys or value is not update.values:
            raise NotPackable("keys or values that are not those of the cache")
        if query.shape[2] != self._num_rows:
            raise NotPackable(f"{query.shape[2]} queries for {self._num_rows} rows")
        for name, extra in rest.items():
            if isinstance(extra, torch.Tensor) and extra.dim() > 1 and name != "position_ids":
                raise NotPackable(f"attention with {name!r}")
        return update

    def _route(self, module: nn.Module, *args: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        """Send row by row through the experts: each tensor is `[rows, ...]`."""
        if self._recording is not None:
            raise CannotReplay("experts, which follow from the numbers")
        if {given.shape[0] for given in (*args, *named.values())} != {self._num_rows}:
            raise NotPackable("experts that take other than one row a position")
        forward: Callable[..., torch.Tensor] = self._interfaces.experts_function(module)
        used = len(self._rows)
        with self._one_row():
            rows = [
                forward(
                    module,
                    *(given[i : i + 1] for given in args),
                    **{name: given[i : i + 1] for name, given in named.items()},
                )
                for i in range(used)
            ]
            if used < self._num_rows:
                rows.append(rows[0].new_zeros(self._num_rows - used, *rows[0].shape[1:]))
        return torch.cat(rows)


def _begin(end: int, window: int | None) -> int:
    """Return the first position that a row sees which sees up to `end`."""
    return 0 if window is None else max(end - window, 0)
