"""Count the bytes a planned stage's weights will take, by shape, dtype and quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from worker.model import internals
from worker.model.lane_text import BLOCK, GROUP
from worker.model.packing import NF4_BLOCK
from worker.model.plan import WEIGHT_DTYPE, StagePlan
from worker.model.quantization_choice import WEIGHT_ONLY, QuantizationChoice
from worker.model.quantize import linear_shape, repacks_nf4

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class WeightSize:
    """The weights of a stage.

    Attributes:
        total_bytes: all parameters and buffers.
        layer_bytes: of each own layer.
        after_layers_bytes: what only the last stage holds.
        largest_linear: elements of the largest quantized linear weight.
        largest_expert: elements of one expert's largest quantized matrix.
        widest: outputs and inputs of the quantized linear with the most outputs.
        repacks: whether nf4 weights are repacked for the CPU.
    """

    total_bytes: int
    layer_bytes: tuple[int, ...]
    after_layers_bytes: int
    largest_linear: int
    largest_expert: int
    widest: tuple[int, int] | None
    repacks: bool


def weight_size(plan: StagePlan, choice: QuantizationChoice, device: str) -> WeightSize:
    """Count what the weights of `plan` take, quantized as in `choice`; nothing is read."""
    model, stage = plan.model, plan.sliced.stage
    layer_bytes = dict.fromkeys(range(stage.shard_start, stage.shard_end), 0)
    head_bytes = total = 0
    for name, size in tensor_bytes(plan, choice, device).items():
        total += size
        layer = layer_index(plan, name)
        if layer is not None:
            layer_bytes[layer] += size
        elif name.rpartition(".")[0] == plan.sliced.parts.head:
            head_bytes += size
    linears = [linear_shape(model.get_submodule(name)) for name in choice.linears]
    experts = [model.get_parameter(name).shape for name in choice.experts]
    return WeightSize(
        total_bytes=total,
        layer_bytes=tuple(layer_bytes.values()),
        after_layers_bytes=0 if stage.is_first and model.all_tied_weights_keys else head_bytes,
        largest_linear=max((rows * columns for rows, columns in linears), default=0),
        largest_expert=max((shape[1] * shape[2] for shape in experts), default=0),
        widest=max(linears, default=None),
        repacks=_repacks(choice, device),
    )


def tensor_bytes(plan: StagePlan, choice: QuantizationChoice, device: str) -> dict[str, int]:
    """Return what each parameter and buffer of `plan` takes; tied ones under one name alone."""
    model = plan.model
    repacks = _repacks(choice, device)
    patterns = internals.float32_patterns(model, WEIGHT_DTYPE)
    tied, stored = set(model.all_tied_weights_keys), set(model.state_dict())
    columns = {name: linear_shape(model.get_submodule(name))[1] for name in choice.linears}
    experts = set(choice.experts)
    found: dict[str, int] = {}
    for name, weight in _tensors(model):
        if name in tied:
            continue
        owner, _, leaf = name.rpartition(".")
        if name in experts or (leaf == "weight" and owner in columns):
            rows = weight.numel() // (weight.shape[-1] if name in experts else columns[owner])
            elements = weight.numel()
            is_filled = choice.quantization in WEIGHT_ONLY and name not in experts
            if is_filled:
                filled = -(-rows // BLOCK) * BLOCK
                elements, rows = elements // rows * filled, filled
            size = _quantized_bytes(elements, rows, choice.quantization)
            if is_filled and choice.quantization == "int8-weight":
                # scales are float32
                size += rows * 2
            if repacks and name not in experts:
                # scales become bfloat16
                size -= weight.numel() // NF4_BLOCK * 2
        else:
            # buffers that no checkpoint holds are made in float32
            wide = patterns if name in stored else [name]
            size = weight.numel() * _element_bytes(name, weight, wide)
        found[name] = size
    return found


def layer_index(plan: StagePlan, name: str) -> int | None:
    """Return which layer parameter `name` is in; None for those beside the layers."""
    prefix = f"{plan.sliced.parts.layers}."
    return int(name.removeprefix(prefix).split(".")[0]) if name.startswith(prefix) else None


def _repacks(choice: QuantizationChoice, device: str) -> bool:
    return choice.quantization == "nf4" and device == "cpu" and repacks_nf4()


def _tensors(model: nn.Module) -> list[tuple[str, Any]]:
    named = list(model.named_parameters(remove_duplicate=False))
    return [*named, *model.named_buffers()]


def _element_bytes(name: str, weight: Any, float32_patterns: list[str]) -> int:
    if not weight.dtype.is_floating_point or weight.element_size() == 1:
        return int(weight.element_size())
    is_kept = any(pattern in name for pattern in float32_patterns)
    return _FLOAT32_BYTES if is_kept else WEIGHT_DTYPE.itemsize


def _quantized_bytes(elements: int, rows: int, quantization: str) -> int:
    if quantization == "int8":
        return elements + rows * _FLOAT32_BYTES
    if quantization == "int8-weight":
        return elements + rows * WEIGHT_DTYPE.itemsize
    if quantization == "int4-weight":
        # a scale and a zero point
        return elements // 2 + elements // GROUP * 2 * WEIGHT_DTYPE.itemsize
    return elements // 2 + elements // NF4_BLOCK * _FLOAT32_BYTES
