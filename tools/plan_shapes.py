"""Costs of models by their shapes alone, and hosts of any size, to try the planner on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.placement import Slot
from worker.protocol.costs import GroupSize, ModelCosts, QuantizedCost, RoleCost

MIB, GIB = 1 << 20, 1 << 30
# Bytes an element, with the scales of each block.
ELEMENT_BYTES = {"bfloat16": 2.0, "int8": 1.0, "nf4": 0.5625}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's numbers of elements.

    Attributes:
        layer_elements: by layer, what is held.
        active_elements: by layer, what one token reads.
        end_elements: of the embedding, and the same again of the head.
        tied: whether both ends use one tensor.
        kv_bytes: by layer, the cache.
        running_bytes: temporaries of a forward.
    """

    layer_elements: Sequence[int]
    active_elements: Sequence[int]
    end_elements: int
    tied: bool = False
    kv_bytes: int
    running_bytes: int = 64 * MIB

    def costs(self, quantizations: Sequence[str] = tuple(ELEMENT_BYTES)) -> ModelCosts:
        """Return what a survey would tell of it."""
        count = len(self.layer_elements)
        layers = [f"model.layers.{layer}" for layer in range(count)]
        groups = {
            name: GroupSize(size_bytes=2 * elements, files=(f"file-{index // 4}",))
            for index, (name, elements) in enumerate(zip(layers, self.layer_elements, strict=True))
        }
        ends = ("model.embed",) if self.tied else ("model.embed", "model.head")
        groups |= {
            name: GroupSize(size_bytes=2 * self.end_elements, files=("file-ends",)) for name in ends
        }
        return ModelCosts(
            layer_kv_bytes=(self.kv_bytes,) * count,
            layer_groups=tuple((name,) for name in layers),
            first_groups=ends[:1],
            last_groups=ends[-1:],
            groups=groups,
            quantizations={name: self._quantized(name) for name in quantizations},
            unavailable={},
        )

    def _quantized(self, quantization: str) -> QuantizedCost:
        element_bytes = ELEMENT_BYTES[quantization]
        end_bytes = 2 * self.end_elements
        loading_bytes = 0 if quantization == "bfloat16" else 2 * max(self.layer_elements) // 16

        def role(weights_bytes: int, read_bytes: int) -> RoleCost:
            return RoleCost(
                weights_bytes=weights_bytes,
                read_bytes=read_bytes,
                running_bytes=self.running_bytes,
                loading_bytes=loading_bytes,
                process_bytes=24 * MIB + (46 * MIB if weights_bytes else 0),
            )

        return QuantizedCost(
            layer_weights_bytes=tuple(int(n * element_bytes) for n in self.layer_elements),
            layer_read_bytes=tuple(int(n * element_bytes) for n in self.active_elements),
            first=role(end_bytes, 0),
            middle=role(0, 0),
            last=role(end_bytes, end_bytes),
            whole=role(end_bytes if self.tied else 2 * end_bytes, end_bytes),
        )


def moe_671b(context: int = 8192) -> Shape:
    """Return the shape of DeepSeek-V3: 61 layers, 3 of them dense, 256 experts of which 8 work."""
    hidden, heads, expert, dense = 7168, 128, 2048, 18432
    attention = hidden * 1536 + 1536 * heads * 192 + hidden * 576 + 512 * heads * 256
    attention += heads * 128 * hidden
    one_expert = 3 * hidden * expert
    dense_layer = attention + 3 * hidden * dense
    sparse_layer = attention + 257 * one_expert + 256 * hidden
    active_layer = attention + 9 * one_expert + 256 * hidden
    return Shape(
        layer_elements=[dense_layer] * 3 + [sparse_layer] * 58,
        active_elements=[dense_layer] * 3 + [active_layer] * 58,
        end_elements=129280 * hidden,
        kv_bytes=context * heads * (192 + 128) * 2,
        running_bytes=2 * GIB,
    )


def smollm2_135m(context: int = 8192) -> Shape:
    """Return the shape of SmolLM2-135M: 30 layers, tied ends."""
    hidden, kv_width, inner = 576, 192, 1536
    layer = 2 * hidden * hidden + 2 * hidden * kv_width + 3 * hidden * inner + 2 * hidden
    return Shape(
        layer_elements=[layer] * 30,
        active_elements=[layer] * 30,
        end_elements=49152 * hidden,
        tied=True,
        kv_bytes=context * 2 * kv_width * 2,
        running_bytes=51 * MIB,
    )


def random_shape(dice: random.Random, num_layers: int) -> Shape:
    """Return a model of layers of about 1 GiB; some are MoE, some have a few layers unlike."""
    elements = [GIB // 2] * num_layers
    for _ in range(dice.randint(0, 3)):
        elements[dice.randrange(num_layers)] = int(GIB * dice.uniform(0.05, 0.9))
    active_part = dice.choice((1.0, 1.0, 0.05))
    return Shape(
        layer_elements=elements,
        active_elements=[int(n * active_part) for n in elements],
        end_elements=int(GIB * dice.uniform(0.05, 1.5)),
        tied=dice.random() < 0.3,
        kv_bytes=int(GIB * dice.uniform(0.001, 0.1)),
        running_bytes=int(GIB * dice.uniform(0.05, 0.5)),
    )


def slot(number: int, free_bytes: int, read_gbps: float = 10.0, **other: object) -> Slot:
    """Return a host of its own with disk for anything."""
    fields: dict[str, object] = {
        "name": f"hosts.txt:{number + 1}",
        "host": f"host{number + 1}",
        "machine": f"machine{number + 1}",
        "device": "cpu",
        "quantization": "bfloat16",
        "free_bytes": free_bytes,
        "resident_bytes": 350 * MIB,
        "read_gbps": read_gbps,
        "disk_free_bytes": 1 << 60,
        **other,
    }
    return Slot(**fields)  # type: ignore[arg-type]


def random_slots(dice: random.Random, count: int, model_bytes: int) -> list[Slot]:
    """Return hosts whose memory differs by 16 and whose speed by 20 times.

    Together they have 1.2 to 4 times the model.
    """
    sizes = [2 ** dice.uniform(0, 4) for _ in range(count)]
    scale = dice.uniform(1.2, 4) * model_bytes / sum(sizes)
    return [
        slot(
            number,
            int(size * scale),
            10 ** dice.uniform(0.7, 2),
            quantization=dice.choice(("bfloat16", "bfloat16", "bfloat16", "int8", "nf4")),
        )
        for number, size in enumerate(sizes)
    ]
