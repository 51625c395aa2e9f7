"""Count the bytes of weights that one decode step reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from worker.model.plan import StagePlan
from worker.model.weight_size import layer_index

# what configs call the number of experts there are, and of those that a token is sent through
_ALL_NAMES = (
    *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    *("num_routed_experts", "moe_num_routed_experts", "num_moe_experts"),
)
_CHOSEN_NAMES = (
    *("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k"),
    *("moe_topk", "moe_k", "num_selected_experts", "top_k"),
)


def read_bytes(plan: StagePlan, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return what one position reads of each tensor of `plan`; `sizes` as `tensor_bytes` gives.

    Of routed experts that is the share of those chosen for a token; of a table that ids are
    looked up in nothing, unless the head multiplies by that same table. What configs do not
    tell counts as read whole.
    """
    modules = plan.model.named_modules()
    tables = {f"{name}.weight" for name, module in modules if isinstance(module, nn.Embedding)}
    if plan.sliced.stage.is_last:
        head = f"{plan.sliced.parts.head}.weight"
        tables -= {head, plan.model.all_tied_weights_keys.get(head)}
    return {
        name: 0 if name in tables else round(size * _chosen_share(plan, name))
        for name, size in sizes.items()
    }


def _chosen_share(plan: StagePlan, name: str) -> float:
    """Which part of a tensor is read: less than all of it for routed experts alone."""
    layer = layer_index(plan, name)
    num_experts = None if layer is None else _num_experts(plan, name)
    if layer is None or num_experts is None:
        return 1.0
    for chosen in _values(plan.architecture.text_config, _CHOSEN_NAMES, layer):
        return min(1.0, chosen / num_experts)
    return 1.0


def _num_experts(plan: StagePlan, name: str) -> int | None:
    """How many experts a tensor is one of, or holds; None where it is not of an expert.

    Experts are a list of modules, or stacked in tensors `[experts, rows, columns]`.
    """
    steps = name.split(".")
    owner: nn.Module = plan.model
    for step in steps[:-1]:
        owner = owner.get_submodule(step)
        if step == "experts" and isinstance(owner, nn.ModuleList):
            return len(owner)
    tensor = getattr(owner, steps[-1])
    # biases of stacked experts are [experts, rows], as is the weight of a router beside them
    is_stack = tensor.dim() == 3 or (tensor.dim() == 2 and "experts" in steps)
    if not is_stack or isinstance(owner, nn.Conv1d):
        return None
    count = int(tensor.shape[0])
    layer = layer_index(plan, name)
    return count if count in _values(plan.architecture.text_config, _ALL_NAMES, layer) else None


def _values(config: Any, names: tuple[str, ...], layer: int | None) -> list[int]:
    """What a config says under these names; some have a list with a number for each layer."""
    found: list[int] = []
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)) and layer is not None and layer < len(value):
            value = value[layer]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            found.append(value)
    return found
