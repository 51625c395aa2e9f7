"""A quantized split gives the bits of the quantized whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from tests.support.tiny import (
    Batch,
    padded_prompts,
    reference_logits,
    same,
    single_prompt,
    split_logits,
    split_runners,
    tiny_checkpoint,
)
from worker.model import quantize
from worker.model.load import load_stage
from worker.model.load_options import LoadOptions, Quantization
from worker.model.loaded import LoadedStage
from worker.model.run import StageRunner
from worker.protocol.stage import StageSlice

QUANTIZATIONS: tuple[Quantization, ...] = ("int8", "nf4")
SMOLLM2_LAYERS = 30
STEPS = 3


@pytest.fixture(scope="module", autouse=True)
def quiet_bitsandbytes() -> None:
    quantize.require_bitsandbytes("nf4")


def stock_config(quantization: str) -> BitsAndBytesConfig:
    """What a user of transformers would write."""
    if quantization == "nf4":
        return BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    return BitsAndBytesConfig(load_in_8bit=True)


def stock_model(folder: Path, quantization: str, **kwargs: Any) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=stock_config(quantization), **kwargs
    )
    return model.eval()


def load_whole(folder: Path, num_layers: int, quantization: Quantization) -> LoadedStage:
    whole = StageSlice(0, num_layers, num_layers)
    return load_stage(folder, whole, LoadOptions(quantization=quantization))


def long_prompt() -> Batch:
    return Batch(torch.arange(100, 143)[None])


@pytest.mark.slow
@pytest.mark.demo_model
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_smollm2_in_2_and_3_stages_gives_the_logits_of_transformers(
    demo_model_path: Path, quantization: Quantization
) -> None:
    wanted = reference_logits(stock_model(demo_model_path, quantization), long_prompt(), STEPS)
    options = LoadOptions(quantization=quantization)
    for num_stages in (2, 3):
        stages = split_runners(demo_model_path, SMOLLM2_LAYERS, num_stages, options)
        found = split_logits(stages, long_prompt(), STEPS)
        assert same(wanted, found), f"{num_stages} stages"


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_conv1d_layers_are_quantized_as_transformers_does(
    tmp_path: Path, quantization: Quantization
) -> None:
    folder = tiny_checkpoint(tmp_path / "gpt2", "gpt2")
    wanted = reference_logits(stock_model(folder, quantization), padded_prompts(160))
    stages = split_runners(folder, 6, 3, LoadOptions(quantization=quantization))
    assert same(wanted, split_logits(stages, padded_prompts(160)))


def stock_model_with_quantized_experts(
    folder: Path, quantization: str, skipped: list[str] | None = None
) -> PreTrainedModel:
    """Plain transformers and bitsandbytes: experts rounded to what the quantization keeps."""
    from bitsandbytes import functional

    config = stock_config(quantization)
    config.llm_int8_skip_modules = skipped
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        quantization_config=config,
        experts_implementation="eager",
    )
    for name, weight in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        for expert in weight.data:
            if quantization == "nf4":
                packed, state = functional.quantize_4bit(expert, quant_type="nf4", blocksize=64)
                expert.copy_(functional.dequantize_4bit(packed, state))
            else:
                rows, scales, _ = functional.int8_vectorwise_quant(expert.half())
                expert.copy_(functional.int8_vectorwise_dequant(rows, scales))
    return model.eval()


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_fused_experts_are_quantized_and_the_split_keeps_the_bits(
    tmp_path: Path, model_type: str, quantization: Quantization
) -> None:
    sizes = {"moe_intermediate_size": 64} if model_type == "qwen3_moe" else {}
    folder = tiny_checkpoint(tmp_path / model_type, model_type, **sizes)
    stock = stock_model_with_quantized_experts(folder, quantization)
    stages = split_runners(folder, 6, 3, LoadOptions(quantization=quantization))
    found = split_logits(stages, single_prompt(160))
    assert same(reference_logits(stock, single_prompt(160)), found)
    assert all("one expert at a time" in s.loaded.numerics["experts"] for s in stages)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_mla_with_experts_split_is_the_quantized_whole(
    tmp_path: Path, quantization: Quantization
) -> None:
    """Stock int8 cannot run these layers: they pass four dimensions to a linear."""
    folder = tiny_checkpoint(tmp_path / "deepseek", "deepseek_v3", moe_intermediate_size=64)
    whole = StageRunner(load_whole(folder, 6, quantization))
    stages = split_runners(folder, 6, 3, LoadOptions(quantization=quantization))
    wanted = split_logits([whole], single_prompt(160))
    assert same(wanted, split_logits(stages, single_prompt(160)))
    assert whole.loaded.weight_bytes < load_stage_bytes(folder)


def load_stage_bytes(folder: Path) -> int:
    return load_stage(folder, StageSlice(0, 6, 6), LoadOptions()).weight_bytes


def test_shapes_the_nf4_kernel_cannot_take_stay_bfloat16_and_are_named(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "llama", "llama", intermediate_size=96)
    loaded = load_whole(folder, 6, "nf4")
    assert loaded.notes == (
        (
            "6 of the weights stay bfloat16 instead of nf4: nf4 needs input widths that are "
            "multiples of 64 (model.layers.0.mlp.down_proj, model.layers.1.mlp.down_proj, "
            "model.layers.2.mlp.down_proj and 3 more)."
        ),
    )
    down = loaded.model.get_submodule("model.layers.0.mlp.down_proj")
    assert (type(down), down.weight.dtype) == (torch.nn.Linear, torch.bfloat16)


def test_int8_says_that_the_rows_of_an_op_share_their_outlier_columns(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "llama", "llama")
    loaded = load_whole(folder, 6, "int8")
    linear = loaded.model.get_submodule("model.layers.0.mlp.up_proj")
    calm = torch.randn(1, 64, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    with torch.inference_mode():
        together = linear(torch.stack([calm, calm * 100]))[0]
        shared = not torch.equal(together, linear(calm))
    assert (shared, "outlier columns" in loaded.numerics["linear"]) == (True, True)


def test_head_and_embeddings_stay_bfloat16(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "qwen3", "qwen3", tie_word_embeddings=False)
    model = load_whole(folder, 6, "nf4").model
    kept = {name for name, p in model.named_parameters() if p.dtype == torch.bfloat16}
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= kept
    assert not any("proj" in name for name in kept)
