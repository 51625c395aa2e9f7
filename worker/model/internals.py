"""Every private function of transformers that Stageline uses, each behind a typed function.

transformers is pinned with `~=`; when it moves, this module is what has to be checked.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)
from transformers.models.auto.auto_factory import _get_model_class
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.quantizers.auto import get_hf_quantizer


def known_config_types() -> frozenset[str]:
    """Return every model type that transformers has a config class for."""
    return frozenset(CONFIG_MAPPING.keys())


def has_causal_lm_class(config: PretrainedConfig) -> bool:
    """Say whether transformers itself has a causal language model for this config class."""
    return type(config) in AutoModelForCausalLM._model_mapping


def causal_lm_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """Return the class `AutoModelForCausalLM` would build for `config`.

    Raises:
        KeyError: transformers has no causal language model for it.
    """
    found: type[PreTrainedModel] = _get_model_class(config, AutoModelForCausalLM._model_mapping)
    return found


def config_for(model_class: type[PreTrainedModel], config: PretrainedConfig) -> PretrainedConfig:
    """Return the config `model_class` takes: of some multi-modal types, that of the text alone.

    As `AutoModelForCausalLM` does, which runs the text decoder of such a checkpoint by itself.
    """
    inner = config.sub_configs.get("text_config")
    if inner is None or getattr(model_class, "config_class", None) is not inner:
        return config
    text: PretrainedConfig = config.get_text_config()
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        text.quantization_config = quantization
    return text


def known_causal_lm_types() -> dict[str, type[PretrainedConfig]]:
    """Return every model type that has a causal language model, with its config class."""
    mapping = AutoModelForCausalLM._model_mapping
    return {cls.model_type: cls for cls in mapping if cls.model_type}


@dataclass(frozen=True)
class CheckpointNames:
    """The renaming and conversion tables of one model: checkpoint name -> parameter name."""

    renamings: list[WeightRenaming]
    converters: list[WeightConverter]
    prefix: str

    def parameter_for(self, name: str, state_dict: dict[str, torch.Tensor]) -> str | None:
        """Name the parameter that checkpoint tensor `name` fills, as the loader would decide.

        `state_dict` is that of the whole model. None means that the model does not use it.
        """
        found, _ = rename_source_key(name, self.renamings, self.converters, self.prefix, state_dict)
        if found not in state_dict and name in state_dict:
            # the loader's own fallback: a name that is right already must not be renamed
            found, _ = rename_source_key(name, [], [], self.prefix, state_dict)
        return found if found in state_dict else None


def checkpoint_names(model: PreTrainedModel, quantizer: Any = None) -> CheckpointNames:
    """Collect the renaming tables of `model`, those of its quantizer included."""
    table = get_model_conversion_mapping(model, None, quantizer)
    return CheckpointNames(
        renamings=[entry for entry in table if isinstance(entry, WeightRenaming)],
        converters=[entry for entry in table if isinstance(entry, WeightConverter)],
        prefix=model.base_model_prefix,
    )


def stacked_sources(
    model: PreTrainedModel, parameters: Mapping[str, str]
) -> dict[str, list[list[str]]]:
    """Find the parameters that the loader would stack from one tensor for each expert.

    `parameters` maps checkpoint names to parameters of `model`. The result maps a parameter
    `[experts, rows, columns]` to lists of checkpoint names, one list for each block of rows, one
    name for each expert. Parameters made in any other way are left to the loader.
    """
    names = checkpoint_names(model)
    by_pattern = {p: entry for entry in names.converters for p in entry.source_patterns}
    shapes = model.state_dict()
    blocks: dict[str, dict[str, list[str]]] = {}
    for name in sorted(parameters, key=dot_natural_key):
        target, pattern = rename_source_key(
            name, names.renamings, names.converters, names.prefix, shapes
        )
        if pattern is not None and _only_stacks(by_pattern[pattern]):
            blocks.setdefault(target, {}).setdefault(pattern, []).append(name)
    found: dict[str, list[list[str]]] = {}
    for target, sources in blocks.items():
        order = by_pattern[next(iter(sources))].source_patterns
        if set(order) == set(sources) and shapes[target].dim() == 3:
            lists = [sources[pattern] for pattern in order]
            if all(len(block) == shapes[target].shape[0] for block in lists):
                found[target] = lists
    return found


def _only_stacks(converter: WeightConverter) -> bool:
    """Say whether a converter stacks experts, and at most puts such stacks side by side."""
    first, *rest = converter.operations
    stacks = type(first) is MergeModulelist and first.dim == 0
    joins = all(type(op) is Concatenate and op.dim == 1 for op in rest)
    return stacks and joins and len(rest) <= 1 and len(converter.target_patterns) == 1


def apply_checkpoint_quantizer(model: PreTrainedModel, dtype: torch.dtype) -> Any:
    """Prepare meta model `model` for a checkpoint that is stored quantized, and return how.

    Without this step the scales of such a checkpoint match no parameter, and its weights
    would load silently wrong. None when the checkpoint is not quantized.
    """
    if declared_quantization(model.config) is None:
        return None
    quantizer, _, device_map = get_hf_quantizer(
        copy.deepcopy(model.config), None, {"": "cpu"}, True, {}
    )
    if quantizer is not None:
        quantizer.preprocess_model(
            model=model,
            dtype=dtype,
            device_map=device_map,
            checkpoint_files=None,
            use_kernels=False,
        )
    return quantizer


def declared_quantization(config: PretrainedConfig) -> str | None:
    """Name the quantization method config.json declares, None for a plain checkpoint."""
    for level in (config, config.get_text_config(decoder=True)):
        declared = getattr(level, "quantization_config", None)
        if declared is not None:
            plain = declared if isinstance(declared, dict) else declared.to_dict()
            method = plain.get("quant_method") or "unnamed"
            return str(getattr(method, "value", method))
    return None


def tied_parameters(model: PreTrainedModel) -> dict[str, str]:
    """Return `{parameter: the parameter it shares}` of the whole (unsliced) model."""
    tied: dict[str, str] = model.get_expanded_tied_weights_keys(all_submodels=True)
    return dict(tied)


def set_tied_parameters(model: PreTrainedModel, tied: dict[str, str]) -> None:
    """Tell the loader which parameters of a sliced model are tied to one another."""
    model.all_tied_weights_keys = tied


def float32_patterns(model: PreTrainedModel, dtype: torch.dtype) -> list[str]:
    """List the name patterns of parameters that stay float32 when loading in `dtype`."""
    plan: dict[str, torch.dtype] = model._get_dtype_plan(dtype)
    return [pattern for pattern, kept in plan.items() if kept == torch.float32]


@contextmanager
def one_tensor_at_a_time() -> Iterator[None]:
    """Make the loader read a tensor only when its turn has come.

    By default four threads run ahead and hold converted tensors: a mixture-of-experts stage
    peaked at twice its size. The loader knows this switch only as an environment variable.
    """
    name = "HF_DEACTIVATE_ASYNC_LOAD"
    before = os.environ.get(name)  # noqa: TID251 - a library's switch, not our configuration
    os.environ[name] = "1"  # noqa: TID251
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]  # noqa: TID251
        else:
            os.environ[name] = before  # noqa: TID251
