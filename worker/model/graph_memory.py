"""Predict what recorded decode steps take, before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from worker.model.dry_run import forward, meta_runner
from worker.model.plan import StagePlan

_MIB = 1 << 20
# A guess, never measured: what a driver keeps for one graph, of which a layer takes one or two.
_GRAPH_BYTES = 2 * _MIB
_GRAPHS_PER_LAYER = 2
# what allocators on GPUs round sizes up to, and what they take at a time
_LEAST_BYTES = 512
_SEGMENT_BYTES = 2 * _MIB
# where a step cannot be run without weights: rows of float32, as a layer of 32 would make
_ROWS_PER_LAYER = 32 * 4


def graph_bytes(plan: StagePlan) -> int:
    """Return the most that the graphs of a stage's decode step hold, as long as it is loaded.

    Every tensor that a step makes is counted as if it stayed, which those between two graphs do.
    """
    num_graphs = _GRAPHS_PER_LAYER * plan.sliced.stage.num_own_layers + 1
    return step_bytes(plan) + _SEGMENT_BYTES + num_graphs * _GRAPH_BYTES


def step_bytes(plan: StagePlan) -> int:
    """Return the bytes of all tensors that one step makes, from a step on the meta device."""
    made = _MadeBytes()
    try:
        runner = meta_runner(plan)
        cache = runner.new_cache()
        forward(runner, cache, 1)
        with made:
            forward(runner, cache, 1)
    except Exception:  # noqa: BLE001 - any op may lack a meta kernel, with any exception
        width = int(plan.architecture.text_config.hidden_size)
        return _ROWS_PER_LAYER * width * plan.sliced.stage.num_own_layers
    return made.total_bytes


class _MadeBytes(TorchDispatchMode):
    """Adds up the bytes of results that are no parts of what was given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total_bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_storage(t) for t in tree_leaves((args, kwargs)) if torch.is_tensor(t)}
        for tensor in tree_leaves(result):
            if torch.is_tensor(tensor) and _storage(tensor) not in given:
                self.total_bytes += -(-tensor.nbytes // _LEAST_BYTES) * _LEAST_BYTES
        return result


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
