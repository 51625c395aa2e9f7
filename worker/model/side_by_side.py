"""Lay out small weights side by side before they are read, in the order in which a model has them.

On pages of their own they would be read more slowly, and products of the same row, as query, key
and value, take their weights as one only where these follow each other (`tape_fuse`). What is laid
out so at once need not be copied afterwards, which for SmolLM2 would take as long as the reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from worker.huge_pages import LEAST_BYTES
from worker.model.pages import empty_tensor
from worker.model.plan import StagePlan
from worker.weights.early import EarlyWeights, room_bytes
from worker.weights.header import TensorEntry


def places(
    plan: StagePlan, entries: Mapping[str, TensorEntry], early: EarlyWeights
) -> dict[str, torch.Tensor]:
    """Return for each small bfloat16 weight, by its checkpoint name, the memory to read it into.

    Those that are converted, or put together from several, have none. `entries` are the tensors of
    the checkpoint; the memory may be there already, in `early`.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in plan.model.state_dict().items()}
    order = {name: place for place, name in enumerate(shapes)}
    sources = Counter(plan.tensors.parameters.values())
    small = {
        name: target
        for name, target in plan.tensors.parameters.items()
        if sources[target] == 1 and _is_small(entries[name], shapes.get(target))
    }
    # weights first: their biases would come between them
    names = sorted(small, key=lambda name: (-len(entries[name].shape), order[small[name]]))
    left = _room(sum(room_bytes(entries[name]) for name in names), early)
    found = {}
    for name in names:
        found[name] = left[: _elements(entries[name].size_bytes)].view(entries[name].shape)
        left = left[_elements(room_bytes(entries[name])) :]
    return found


def _room(size_bytes: int, early: EarlyWeights) -> torch.Tensor:
    block = early.take_room(size_bytes)
    if block is None:
        return empty_tensor((_elements(size_bytes),), torch.bfloat16)
    return torch.frombuffer(block, dtype=torch.bfloat16)


def _is_small(entry: TensorEntry, shape: tuple[int, ...] | None) -> bool:
    return entry.dtype == "BF16" and entry.shape == shape and 0 < entry.size_bytes < LEAST_BYTES


def _elements(size_bytes: int) -> int:
    return size_bytes // torch.bfloat16.itemsize
