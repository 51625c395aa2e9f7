"""Run several positions of one request in one forward, each as a forward of its own would.

Linears, norms, rotary tables and all else that works row by row take all rows at once, as far as
`row_ops` knows that to be exact. Attention takes them one after the other, each with the very call
a single position makes: against the keys and values up to and including its own. So do routed
experts, whose kernels see more or fewer rows with the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from worker.model.interfaces import Interfaces
from worker.model.kv import StageCache
from worker.model.kv_layers import GrowingLayer, RewindableSlidingLayer
from worker.model.row_kernels import RowKernels
from worker.model.row_ops import NotPackable, RowOps


@dataclass(frozen=True, eq=False)
class RowMasks:
    """What a pack passes through the model as its attention mask: one mask for each row."""

    pack: RowPack
    rows: tuple[torch.Tensor | None, ...]


class RowPack:
    """One forward of `num_rows` positions that follow what `cache` holds.

    Raises:
        NotPackable: from within the forward, where the model goes other ways.
    """

    def __init__(
        self, interfaces: Interfaces, kernels: RowKernels, cache: StageCache, num_rows: int
    ) -> None:
        self._interfaces = interfaces
        self._kernels = kernels
        self._cache = cache
        self._start = cache.seen
        self._num_rows = num_rows
        self._attended: list[int] = []
        self._alone = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have the model work on rows in the block, which is one forward."""
        ops = RowOps(self._num_rows, self._kernels, lambda: self._alone)
        with self._interfaces.replaced(self._attend, self._masks, self._route), ops:
            yield
        if tuple(self._attended) != self._cache.own_layers:
            raise NotPackable(
                f"layers {self._attended} attended, the cache holds {self._cache.own_layers}"
            )

    @contextmanager
    def _one_row(self) -> Iterator[None]:
        """Leave the ops in the block alone: they are those of a single position."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def _span(self, row: int, window: int | None) -> tuple[int, int]:
        """Return which positions a row sees: from, to."""
        end = self._start + row + 1
        return (0 if window is None else max(end - window, 0)), end

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
        total = self._start + self._num_rows
        begin = self._span(0, window)[0]
        asked = (q_length, q_offset, kv_length, kv_offset)
        if asked != (self._num_rows, self._start, total - begin, begin):
            raise NotPackable(f"masks of sizes {asked} at {self._start} + {self._num_rows} rows")
        make = self._interfaces.mask_function()
        rows = []
        with self._one_row():
            for i in range(self._num_rows):
                begin, end = self._span(i, window)
                seen = None if attention_mask is None else attention_mask[:, :end]
                sizes = {"kv_length": end - begin, "kv_offset": begin}
                rows.append(
                    make(q_length=1, q_offset=end - 1, attention_mask=seen, **sizes, **rest)
                )
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
        layer = self._cache.layers[index]
        self._check_states(layer, query, key, value, rest)
        window = layer.sliding_window if isinstance(layer, RewindableSlidingLayer) else None
        first = self._start + self._num_rows - key.shape[2]
        attend = self._interfaces.attention_function(module)
        outputs = []
        with self._one_row():
            for i, mask in enumerate(attention_mask.rows):
                begin, end = self._span(i, window)
                if begin < first or (mask is not None and mask.shape[-1] != end - begin):
                    raise NotPackable(f"row {i} sees {begin}:{end}, keys begin at {first}")
                seen = slice(begin - first, end - first)
                output, _ = attend(
                    module, query[:, :, i : i + 1], key[:, :, seen], value[:, :, seen], mask, **rest
                )
                outputs.append(output)
        self._attended.append(index)
        return torch.cat(outputs, 1), None

    def _check_states(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        rest: Mapping[str, Any],
    ) -> None:
        """See that attention reads the cache itself, and nothing else that differs by row.

        Keys computed from what is cached would be computed by kernels for another number of rows.
        """
        if type(layer) not in (GrowingLayer, RewindableSlidingLayer):
            raise NotPackable(f"attention over a {type(layer).__name__}")
        if query.shape[2] != self._num_rows or key.shape[2] != value.shape[2]:
            raise NotPackable(f"{query.shape[2]} queries, {key.shape[2]} keys")
        for given, held in ((key, layer.keys), (value, layer.values)):
            if held is None or given.untyped_storage()._cdata != held.untyped_storage()._cdata:
                raise NotPackable("keys or values that are not those of the cache")
        for name, extra in rest.items():
            if isinstance(extra, torch.Tensor) and extra.dim() > 1 and name != "position_ids":
                raise NotPackable(f"attention with {name!r}")

    def _route(self, module: nn.Module, *args: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        """Send row by row through the experts: each tensor is `[rows, ...]`."""
        if {given.shape[0] for given in (*args, *named.values())} != {self._num_rows}:
            raise NotPackable("experts that take other than one row a position")
        forward: Callable[..., torch.Tensor] = self._interfaces.experts_function(module)
        with self._one_row():
            rows = [
                forward(
                    module,
                    *(given[i : i + 1] for given in args),
                    **{name: given[i : i + 1] for name, given in named.items()},
                )
                for i in range(self._num_rows)
            ]
        return torch.cat(rows)
