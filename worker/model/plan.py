"""Plan a stage without reading weights: its sliced meta model and the tensors it needs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from worker.model import internals
from worker.model.architecture import Architecture
from worker.model.cuts import check_cuts
from worker.model.errors import UnsupportedModel
from worker.model.layout import HiddenLayout, hidden_layout
from worker.model.parts import ModelParts
from worker.model.slicing import SlicedParts, slice_model
from worker.model.unfilled import Unfilled
from worker.protocol.stage import StageSlice
from worker.weights.select import StageTensors, select_tensors

WEIGHT_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class StagePlan:
    """What a stage will hold. `model` is the sliced model on the meta device: no weights."""

    architecture: Architecture
    model: PreTrainedModel
    sliced: SlicedParts
    tensors: StageTensors
    layout: HiddenLayout


def plan_stage(
    architecture: Architecture,
    checkpoint_names: Iterable[str],
    stage: StageSlice,
    *,
    needs_tokens: bool,
) -> StagePlan:
    """Plan `stage` of a checkpoint that holds tensors of these names.

    Names become parameters through transformers' own renaming tables, as in its loader.

    Raises:
        UnsupportedModel: the cut is not legal, or a parameter of the slice is in no tensor.
    """
    (plan,) = plan_stages(architecture, checkpoint_names, [stage], needs_tokens=needs_tokens)
    return plan


def plan_stages(
    architecture: Architecture,
    checkpoint_names: Iterable[str],
    stages: Sequence[StageSlice],
    *,
    needs_tokens: bool,
) -> list[StagePlan]:
    """Plan several slices of one checkpoint; its names are looked up once.

    Raises:
        UnsupportedModel: as `plan_stage`.
    """
    plans: list[StagePlan] = []
    targets: dict[str, str] | None = None
    for stage in stages:
        if stage.num_layers == architecture.num_layers:
            check_cuts(architecture.config, stage)
        model = meta_model(architecture)
        table = internals.checkpoint_names(model, _checkpoint_quantizer(model))
        if targets is None:
            whole = model.state_dict()
            found = {name: table.parameter_for(name, whole) for name in checkpoint_names}
            targets = {name: target for name, target in found.items() if target is not None}
        layout = hidden_layout(model, ModelParts.of(model))
        sliced = slice_model(model, stage, needs_tokens=needs_tokens)
        tensors = select_tensors(targets, model.state_dict().keys(), sliced.tied)
        _check_complete(model, sliced, tensors, convertible=bool(table.converters))
        plans.append(StagePlan(architecture, model, sliced, tensors, layout))
    return plans


def meta_model(architecture: Architecture) -> PreTrainedModel:
    """Build the whole model on the meta device: shapes alone, no memory.

    Raises:
        UnsupportedModel: the model's class cannot be built from this config.
    """
    # building a model writes into its config
    config = copy.deepcopy(architecture.config)
    # as the loader sets it; config.json gives it as text, which some models hand to torch
    for level in (config, config.get_text_config(decoder=True)):
        level.dtype = WEIGHT_DTYPE
    try:
        with torch.device("meta"), Unfilled():
            model = architecture.model_class(config)
    except Exception as error:  # model classes raise anything on values they dislike
        raise UnsupportedModel(
            f"no {config.model_type} model can be built from config.json ({_reason(error)}); "
            "fetch the model again, or correct that value"
        ) from error
    model.eval()
    return model


def _checkpoint_quantizer(model: PreTrainedModel) -> Any:
    """Prepare meta model `model` for a checkpoint that is stored quantized; None for others."""
    try:
        return internals.apply_checkpoint_quantizer(model, WEIGHT_DTYPE)
    except Exception as error:  # a missing package, or settings that the library does not know
        raise UnsupportedModel(
            "the quantization that config.json says the checkpoint is stored in cannot be used "
            f"here ({_reason(error)}); follow that, or use the unquantized model"
        ) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _check_complete(
    model: PreTrainedModel, sliced: SlicedParts, tensors: StageTensors, *, convertible: bool
) -> None:
    """Refuse a checkpoint that lacks a parameter of the slice.

    Where the model has converters, one checkpoint name may fill more parameters than the one it
    is mapped to (a fused tensor that is taken apart), so only the head can be judged here; the
    loader's report, checked after loading, judges the rest.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    missing = [name for name in tensors.missing if name in parameters]
    head = f"{sliced.parts.head}.weight"
    if head in missing:
        raise UnsupportedModel(
            "the config says that the output head has weights of its own (tie_word_embeddings "
            f"is false), but the checkpoint holds no {head}; fetch the model again or correct "
            "tie_word_embeddings in config.json"
        )
    if missing and not convertible:
        raise UnsupportedModel(
            f"the checkpoint holds no weights for {missing[0]}"
            + (f" and {len(missing) - 1} more parameters" if missing[1:] else "")
            + f" of layers {sliced.stage}; fetch the model again"
        )
