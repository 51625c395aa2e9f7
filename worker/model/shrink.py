"""Shrink a config to a tiny model of the same structure, by the names configs share."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from transformers import PretrainedConfig

TINY_LAYERS = 6

# sizes under all the names configs give them; they fit together: 4 heads of 16 make 64
TINY_SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 128),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "num_layers", "decoder_layers", "n_layers"), TINY_LAYERS
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    "head_dim": 16,
    "vocab_size": 160,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 256),
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": 8,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(
        (
            "num_experts_per_tok",
            "num_experts_per_token",
            "moe_top_k",
            "moe_k",
            "top_k_experts",
        ),
        2,
    ),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_intermediate_size"),
        32,
    ),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group"), 1),
    "first_k_dense_replace": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "rotary_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "mamba_d_state": 8,
    "mamba_dt_rank": 8,
    "mamba_d_head": 16,
    "mamba_n_heads": 8,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 128,
    "state_size": 8,
    "initializer_range": 0.12,
    **dict.fromkeys(
        (
            "attention_dropout",
            "resid_pdrop",
            "embd_pdrop",
            "attn_pdrop",
            "hidden_dropout",
            "dropout",
        ),
        0.0,
    ),
}
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "decoder_layers", "n_layers")
# latent attention: rotary width and head count are bound to each other
_LATENT: Mapping[str, Any] = {"head_dim": 8, "num_key_value_heads": 4}
# sizes that only some models have, and that are wrong where the model has them at zero
_RARE: Mapping[str, Any] = {
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 160,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 8,
}
_NOT_SIZES = ("model_type", "transformers_version", "architectures", "dtype", "quantization_config")
_LAYER_LISTS = ("layer_types", "mlp_layer_types", "layers_block_type")


def tiny_config(
    config_class: type[PretrainedConfig], overrides: Mapping[str, Any] | None = None
) -> PretrainedConfig:
    """Build a tiny config of `config_class`; `overrides` win, those of value None are dropped.

    Raises:
        Exception: the config class does not take the sizes together.
    """
    given = dict(overrides or {})
    default = config_class()
    aliases: Mapping[str, str] = getattr(config_class, "attribute_map", None) or {}
    fields: dict[str, Any] = {
        name: value
        for name, value in TINY_SIZES.items()
        if name in default.to_dict() or name in aliases or hasattr(default, name)
    }
    for alias, name in aliases.items():
        if alias in fields and name in fields:
            del fields[alias]
    if "num_layers" in fields and "num_hidden_layers" in fields:
        del fields["num_layers"]
    lists = [n for n in _LAYER_LISTS if isinstance(getattr(default, n, None), (list, tuple))]
    dropped = {name for name, value in given.items() if value is None and name not in lists}
    fields = {n: v for n, v in (fields | given).items() if n not in dropped}
    # most classes compute their per-layer lists; the others need to be told that the default,
    # which is as long as the default model, is not meant
    unset = dict.fromkeys((n for n in lists if n not in given), None)
    if set(given) & {"layer_types", "layers_block_type"}:
        unset = {n: v for n, v in unset.items() if n == "mlp_layer_types"}
    for attempt in (fields, unset | fields):
        with suppress(Exception):
            config = config_class(**attempt)
            if all(_fits(getattr(config, name, None), config) for name in lists):
                return config
    return config_class(**fields)


def _fits(per_layer: Any, config: PretrainedConfig) -> bool:
    return per_layer is None or len(per_layer) == config.num_hidden_layers


def shrunk(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """Shrink a real config, keeping its switches and the order of its layer kinds.

    Sizes must fit together in ways that differ between models, so several are offered, the
    likeliest first; those the config class itself refuses are left out. Of per-layer lists six
    spread entries are kept, so that every kind of layer comes up.
    """
    for changes in ({}, _LATENT, {"head_dim": None}):
        with suppress(Exception):
            yield _resized(config, {**TINY_SIZES, **_RARE, **changes})


def _resized(config: PretrainedConfig, sizes: Mapping[str, Any]) -> PretrainedConfig:
    num_layers = config.num_hidden_layers
    kept: dict[str, Any] = {}
    for name, value in copy.deepcopy(config.to_dict()).items():
        if name in _NOT_SIZES or name.startswith("_"):
            continue
        if isinstance(value, list) and len(value) == num_layers > 1:
            kept[name] = _spread(value)
        elif name in _LAYER_COUNTS and value is not None:
            kept[name] = TINY_LAYERS
        elif name in sizes and value and not isinstance(value, list):
            kept[name] = sizes[name]
        else:
            kept[name] = value
    return type(config)(**kept)


def _spread(values: list[Any]) -> list[Any]:
    last = len(values) - 1
    step = max(1, round(last / (TINY_LAYERS - 1)))
    # an odd step meets every kind of a pattern of two
    step += 1 - step % 2
    return [values[min(i * step, last)] for i in range(TINY_LAYERS)]
