"""Count what the layers and roles of a model cost at one quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worker.model.architecture import Architecture
from worker.model.cost_groups import shared_by_layers
from worker.model.dry_run import DryRun
from worker.model.memory import loading_bytes, planned_bytes, process_bytes, running_bytes
from worker.model.plan import StagePlan
from worker.model.quantization_choice import QuantizationChoice
from worker.model.read_size import read_bytes
from worker.model.weight_size import layer_index, tensor_bytes, weight_size
from worker.protocol.costs import QuantizedCost, RoleCost
from worker.protocol.stage import Role
from worker.remembered import NOTHING, Remembered
from worker.weights.index import CheckpointIndex

QUANTIZATIONS = ("bfloat16", "int8", "nf4", "int8-weight", "int4-weight")


@dataclass(frozen=True, slots=True)
class CostQuestion:
    """What costs are asked for.

    Attributes:
        folder: has the config, and the tokenizer where there is one.
        index: the checkpoint's tensors; every header is asked for.
        device: `cpu`, `cuda:0`, `mps`: it decides what can be quantized.
        quantizations: those to try.
        remembered: what was found out here before.
    """

    architecture: Architecture
    folder: Path
    index: CheckpointIndex
    device: str
    max_context: int
    prefill_chunk: int
    quantizations: tuple[str, ...] = QUANTIZATIONS
    remembered: Remembered = NOTHING


@dataclass(frozen=True, slots=True)
class WidestSlice:
    """The widest slice of a role: what any of its slices needs at a time, this one needs."""

    plan: StagePlan
    run: DryRun


class QuantizedCosting:
    """Counts the costs at one quantization, whose choice for the whole model is given."""

    def __init__(
        self,
        question: CostQuestion,
        roles: Mapping[Role, WidestSlice],
        choice: QuantizationChoice,
        stacked: frozenset[str],
    ) -> None:
        self._question = question
        self._roles = roles
        self._choice = choice
        self._stacked = stacked
        plan = roles[Role.WHOLE].plan
        sizes = tensor_bytes(plan, choice, question.device)
        shared = shared_by_layers(plan)
        self._held = _by_layer(plan, sizes, shared)
        self._read = _by_layer(plan, read_bytes(plan, sizes), shared)

    def cost(self) -> QuantizedCost:
        """Return the costs of layers and roles."""
        roles = {role.value: self._role(widest) for role, widest in self._roles.items()}
        return QuantizedCost(
            layer_weights_bytes=tuple(self._held), layer_read_bytes=tuple(self._read), **roles
        )

    def _role(self, widest: WidestSlice) -> RoleCost:
        question, plan, stage = self._question, widest.plan, widest.plan.sliced.stage
        choice = _within(self._choice, plan)
        weights = weight_size(plan, choice, question.device)
        sizes = tensor_bytes(plan, choice, question.device)
        own = slice(stage.shard_start, stage.shard_end)
        return RoleCost(
            weights_bytes=weights.total_bytes - sum(self._held[own]),
            read_bytes=sum(read_bytes(plan, sizes).values()) - sum(self._read[own]),
            running_bytes=running_bytes(widest.run, choice, weights, question.prefill_chunk),
            loading_bytes=loading_bytes(plan, question.index, choice, weights, self._stacked),
            process_bytes=process_bytes(
                stage,
                choice.quantization,
                question.folder,
                compiles=question.device == "cpu",
            )
            + planned_bytes(choice.quantization),
        )


def _by_layer(plan: StagePlan, sizes: Mapping[str, int], shared: frozenset[str]) -> list[int]:
    found = [0] * plan.sliced.stage.num_layers
    for name, size in sizes.items():
        layer = layer_index(plan, name)
        if layer is not None and name not in shared:
            found[layer] += size
    return found


def _within(choice: QuantizationChoice, plan: StagePlan) -> QuantizationChoice:
    """The part of the whole model's choice that a slice has; it is the slice's own choice."""
    modules = {name for name, _ in plan.model.named_modules()}
    parameters = {name for name, _ in plan.model.named_parameters()}
    return QuantizationChoice(
        choice.quantization,
        tuple(name for name in choice.linears if name in modules),
        tuple(name for name in choice.experts if name in parameters),
        choice.left,
    )
