"""Have single modules of a model take the rows of a pack in their own way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from worker.model.row_kernels import by_row
from worker.model.row_ops import RowOps


class RowModules:
    """Modules whose products have a law of their own about rows, and those by their weights.

    A module with an attribute `exact_rows` gives up to that many rows what it gives each alone,
    by whatever kernels, and is not looked into. It does so for rows that lie one after the other;
    others go row by row, as rows alone do lie so.
    """

    def __init__(self, model: nn.Module) -> None:
        self._lawful = [m for m in model.modules() if getattr(m, "exact_rows", None) is not None]
        self._by_address = {
            weight.data_ptr(): module
            for module in model.modules()
            if isinstance(weight := vars(module).get("_parameters", {}).get("weight"), torch.Tensor)
            and not isinstance(module, nn.Embedding)
        }

    def of(self, addresses: Iterable[int]) -> list[nn.Module] | None:
        """Return the modules that own weights; None where some weight is no module's."""
        found = [self._by_address.get(address) for address in addresses]
        return None if None in found else [module for module in found if module is not None]

    @contextmanager
    def minded(
        self, num_rows: int, uneven: Iterable[nn.Module], ops: RowOps | None
    ) -> Iterator[None]:
        """Run `uneven` modules row by row in the block, and have `ops` trust the lawful ones."""
        ways: dict[nn.Module, Callable[..., torch.Tensor]] = {}
        for module in uneven:
            ways[module] = _row_by_row(module.forward, num_rows)
        for module in self._lawful:
            if module.exact_rows < num_rows:  # type: ignore[operator]
                ways[module] = _row_by_row(module.forward, num_rows, ops)
            elif ops is not None:
                ways[module] = _trusted(module, num_rows, ops)
        before = {module: vars(module).get("forward") for module in ways}
        for module, way in ways.items():
            vars(module)["forward"] = way
        try:
            yield
        finally:
            for module, own in before.items():
                if own is None:
                    del vars(module)["forward"]
                else:
                    vars(module)["forward"] = own


def _row_by_row(
    forward: Callable[..., torch.Tensor], num_rows: int, ops: RowOps | None = None
) -> Callable[..., torch.Tensor]:
    one = forward if ops is None else _unwatched(forward, ops)

    def way(x: torch.Tensor) -> torch.Tensor:
        row_dim = x.dim() - 2
        if x.shape[row_dim] != num_rows:
            raise ValueError(f"{num_rows} rows in a tensor {list(x.shape)}")
        return by_row(one, x, row_dim)

    return way


def _trusted(module: nn.Module, num_rows: int, ops: RowOps) -> Callable[..., torch.Tensor]:
    """Return a forward that is left alone, and counted among the uneven where it must be."""
    at_once = _unwatched(module.forward, ops)
    row_by_row = _row_by_row(module.forward, num_rows, ops)

    def way(x: torch.Tensor) -> torch.Tensor:
        if x.is_contiguous():
            return at_once(x)
        ops.uneven.add(vars(module)["_parameters"]["weight"].data_ptr())
        return row_by_row(x)

    return way


def _unwatched(forward: Callable[..., torch.Tensor], ops: RowOps) -> Callable[..., torch.Tensor]:
    def way(*args: Any, **named: Any) -> torch.Tensor:
        with ops.paused():
            return forward(*args, **named)

    return way
