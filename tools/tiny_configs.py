"""Recipes for tiny models of every causal-LM type: what a type needs beside the shared sizes.

Test data. The product names no family; this file is where families are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from worker.model.shrink import tiny_config

_SSF = ["sliding_attention", "sliding_attention", "full_attention"] * 2
_SF = ["sliding_attention", "full_attention"] * 3
_LLF = ["linear_attention", "linear_attention", "full_attention"] * 2
_MLA: Mapping[str, Any] = {"head_dim": 8, "num_key_value_heads": 4}
_DSA = {**_MLA, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8}
_GRANITE = {
    "embedding_multiplier": 12.0,
    "logits_scaling": 4.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.25,
}
_ZAMBA = {
    "layers_block_type": ["mamba", "hybrid", "mamba", "mamba", "hybrid", "mamba"],
    "head_dim": None,
    "attention_head_dim": 32,
    "attention_hidden_size": 128,
}

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "axk1": _MLA,
    "axk2": _MLA,
    "bailing_hybrid": {"num_key_value_heads": 4},
    "bamba": {
        "attn_layer_indices": [1, 4],
        "mamba_d_head": 16,
        "mamba_n_heads": 8,
        "attn_rotary_emb": 8,
    },
    "bloom": {"hidden_dropout": 0.0},
    "codegen": {"rotary_dim": 8},
    "cohere2": {"layer_types": _SSF, "head_dim": 16},
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "deepseek_v32": _DSA,
    "dots1": {"layer_types": None},
    "exaone4": {"layer_types": _SF},
    "falcon": {
        "head_dim": None,
        "alibi": False,
        "new_decoder_architecture": False,
        "multi_query": True,
    },
    "falcon_h1": {"mamba_d_head": 16, "mamba_n_heads": 8, "mamba_d_ssm": 128},
    "falcon_mamba": {"time_step_rank": 8},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 8, "layer_types": _SSF},
    "gemma3n_text": {
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 160,
        "laurel_rank": 8,
        "num_kv_shared_layers": 2,
        "layer_types": _SSF,
        "activation_sparsity_pattern": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        "intermediate_size": [128, 128, 128, 128, 128, 128],
    },
    "gemma4_text": {
        "layer_types": _SSF,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 160,
    },
    "glm4_moe_lite": _MLA,
    "glm_moe_dsa": _DSA,
    "gpt_neo": {"attention_types": [[["global", "local"], 3]], "window_size": 8},
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt_oss": {"layer_types": _SF},
    "gptj": {"rotary_dim": 8},
    "granite": _GRANITE,
    "granitemoe": _GRANITE,
    "granitemoehybrid": {
        "layer_types": [
            "linear_attention",
            "full_attention",
            "linear_attention",
            "linear_attention",
            "full_attention",
            "linear_attention",
        ],
        "mamba_d_head": 16,
        "mamba_n_heads": 8,
        "shared_intermediate_size": 64,
    },
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "moe_topk": 2},
    "jamba": {
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "kimi_linear": {**_MLA, "linear_head_dim": 16, "linear_num_heads": 4},
    "lfm2": {
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
    },
    "lfm2_moe": {
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention", "conv"],
        "num_dense_layers": 2,
    },
    "llama4_text": {
        "no_rope_layers": [1, 1, 1, 0, 1, 1],
        "attention_chunk_size": 8,
        "interleave_moe_layer_step": 2,
        "intermediate_size_mlp": 128,
        "layer_types": None,
        "moe_layers": None,
    },
    "longcat_flash": {
        **_MLA,
        "num_layers": 3,
        "ffn_hidden_size": 128,
        "expert_ffn_hidden_size": 32,
        "moe_topk": 2,
        "zero_expert_num": 2,
    },
    "mamba": {"time_step_rank": 8},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "expand": 2},
    "minicpm3": _MLA,
    "minimax": {
        "layer_types": [
            "linear_attention",
            "full_attention",
            "linear_attention",
            "full_attention",
            "linear_attention",
            "full_attention",
        ],
        "block_size": 4,
    },
    "ministral": {"head_dim": 16},
    "mistral": {"sliding_window": 8},
    "mixtral": {"sliding_window": 8},
    "nemotron": {"num_key_value_heads": 2},
    "olmo3": {"layer_types": _SF},
    "olmo_hybrid": {"layer_types": _LLF},
    "opt": {"word_embed_proj_dim": 32, "do_layer_norm_before": True},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 3},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 3},
    "qwen3_5_moe_text": {"layer_types": _LLF},
    "qwen3_5_text": {"layer_types": _LLF},
    "qwen3_next": {"layer_types": _LLF, "decoder_sparse_step": 1},
    "recurrent_gemma": {
        "lru_width": 64,
        "attention_window_size": 8,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "sarvam_mla": _MLA,
    "smollm3": {"no_rope_layers": [1, 1, 1, 0, 1, 1], "layer_types": None},
    "stablelm": {"partial_rotary_factor": 0.5},
    "youtu": _MLA,
    "zamba": {
        **_ZAMBA,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "n_mamba_heads": 2,
        "use_mamba_kernels": False,
        "mamba_dt_rank": 8,
    },
    "zamba2": {
        **_ZAMBA,
        "num_mem_blocks": 1,
        "mamba_ngroups": 1,
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "use_mem_rope": True,
    },
}


def recipe_config(model_type: str, **overrides: Any) -> PretrainedConfig:
    """Build the tiny config of `model_type`; `overrides` come after the recipe.

    Raises:
        KeyError: transformers does not know the type.
        Exception: the config class does not take the sizes together.
    """
    default = CONFIG_MAPPING[model_type]()
    if model_type in COMPOSITES or default.get_text_config(decoder=True) is not default:
        return _composite(model_type, default)
    return tiny_config(type(default), {**RECIPES.get(model_type, {}), **overrides})


# encoders and encoder-decoders that transformers also lists with a causal head: the worker
# refuses the second, and nobody generates text with the first, so they would only pad the table
NOT_GENERATIVE = frozenset(
    (
        *("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart"),
        *("musicgen", "musicgen_melody", "mvp", "pegasus", "plbart", "prophetnet", "whisper"),
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra"),
        *("ernie", "megatron-bert", "reformer", "rembert", "roberta", "roberta-prelayernorm"),
        *("roc_bert", "roformer", "trocr", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    )
)

# multi-modal types are built of their text type's recipe and small towers
_TOWER = {
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "out_hidden_size"), 32),
    **dict.fromkeys(("intermediate_size", "mlp_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "depth", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "num_key_value_heads"), 2),
    "image_size": 28,
    "patch_size": 14,
}
COMPOSITES: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {"mm_tokens_per_image": 4},
}


def _composite(model_type: str, default: PretrainedConfig) -> PretrainedConfig:
    text = default.get_text_config(decoder=True)
    fields: dict[str, Any] = dict(COMPOSITES.get(model_type, {}))
    for name, value in vars(default).items():
        if value is text:
            fields[name] = recipe_config(text.model_type).to_dict()
        elif isinstance(value, PretrainedConfig):
            sizes = {n: v for n, v in _TOWER.items() if type(getattr(value, n, None)) is int}
            fields[name] = {**value.to_dict(), **sizes}
    outer_class: Any = CONFIG_MAPPING[model_type]
    config: PretrainedConfig = outer_class(**fields)
    return config
