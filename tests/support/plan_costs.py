"""Costs of models with round numbers, so that a test can say what a plan must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tools.plan_shapes import GIB
from worker.protocol.costs import GroupSize, ModelCosts, QuantizedCost, RoleCost

NOTHING = RoleCost(weights_bytes=0, read_bytes=0, running_bytes=0, loading_bytes=0, process_bytes=0)


def flat_costs(
    num_layers: int, layer_bytes: int = GIB, *, kv_bytes: int = 0, parts: Sequence[float] = (1.0,)
) -> ModelCosts:
    """Return layers that are all alike and ends that weigh nothing.

    `parts` are the sizes of the layers at bfloat16, int8, nf4, as parts of `layer_bytes`.
    """
    names = [f"layers.{layer}" for layer in range(num_layers)]
    return ModelCosts(
        layer_kv_bytes=(kv_bytes,) * num_layers,
        layer_groups=tuple((name,) for name in names),
        first_groups=("embed",),
        last_groups=("head",),
        groups={
            **{
                name: GroupSize(size_bytes=layer_bytes, files=(f"file{index // 2}",))
                for index, name in enumerate(names)
            },
            "embed": GroupSize(size_bytes=0, files=("ends",)),
            "head": GroupSize(size_bytes=0, files=("ends",)),
        },
        quantizations={
            name: QuantizedCost(
                layer_weights_bytes=(int(layer_bytes * part),) * num_layers,
                layer_read_bytes=(int(layer_bytes * part),) * num_layers,
                first=NOTHING,
                middle=NOTHING,
                last=NOTHING,
                whole=NOTHING,
            )
            for name, part in zip(("bfloat16", "int8", "nf4"), parts, strict=False)
        },
        unavailable={} if len(parts) > 1 else {"int8": "bitsandbytes is not installed"},
    )


def with_roles(costs: ModelCosts, **roles: RoleCost) -> ModelCosts:
    """Return the costs with some roles replaced, at every quantization."""
    return replace(
        costs,
        quantizations={
            name: QuantizedCost(
                layer_weights_bytes=cost.layer_weights_bytes,
                layer_read_bytes=cost.layer_read_bytes,
                first=roles.get("first", cost.first),
                middle=roles.get("middle", cost.middle),
                last=roles.get("last", cost.last),
                whole=roles.get("whole", cost.whole),
            )
            for name, cost in costs.quantizations.items()
        },
    )
