"""Weights alone in 8 or 4 bits: a split gives the bits of the rule in plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.support.rounded import Int4, Int8
from tests.support.tiny import (
    Batch,
    reference_logits,
    same,
    single_prompt,
    split_logits,
    split_runners,
    tiny_checkpoint,
)
from worker.model.load import load_stage, prepare_stage
from worker.model.load_options import LoadOptions, Quantization
from worker.model.loaded import LoadedStage
from worker.model.run import StageRunner
from worker.model.steps import StepRunner
from worker.protocol.stage import StageSlice

KINDS: tuple[Quantization, ...] = ("int8-weight", "int4-weight")


ORACLES = {"int8-weight": Int8, "int4-weight": Int4}


def plain_model(folder: Path, kind: str) -> PreTrainedModel:
    """Plain transformers with its linear layers rounded, but for the head."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.eval()
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and name != "lm_head":
            model.set_submodule(name, ORACLES[kind](module))
    return model


def load_whole(folder: Path, kind: Quantization, layers: int = 6) -> LoadedStage:
    return load_stage(folder, StageSlice(0, layers, layers), LoadOptions(quantization=kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_a_split_gives_the_bits_of_the_rule_in_plain_transformers(
    tmp_path: Path, model_type: str, kind: Quantization
) -> None:
    folder = tiny_checkpoint(tmp_path / model_type, model_type)
    wanted = reference_logits(plain_model(folder, kind), single_prompt(160))
    for num_stages in (2, 3):
        stages = split_runners(folder, 6, num_stages, LoadOptions(quantization=kind))
        assert same(wanted, split_logits(stages, single_prompt(160))), num_stages


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prompt_split_is_that_of_the_whole(tmp_path: Path, kind: Quantization) -> None:
    folder = tiny_checkpoint(tmp_path / "gpt2", "gpt2")
    prompt = Batch(torch.arange(3, 43)[None])
    wanted = split_logits([StageRunner(load_whole(folder, kind))], prompt)
    stages = split_runners(folder, 6, 3, LoadOptions(quantization=kind))
    assert same(wanted, split_logits(stages, prompt))


@pytest.mark.slow
@pytest.mark.demo_model
@pytest.mark.parametrize("kind", KINDS)
def test_smollm2_in_2_and_3_stages_gives_the_logits_of_plain_transformers(
    demo_model_path: Path, kind: Quantization
) -> None:
    prompt = Batch(torch.arange(100, 112)[None])
    wanted = reference_logits(plain_model(demo_model_path, kind), prompt, 3)
    for num_stages in (2, 3):
        stages = split_runners(demo_model_path, 30, num_stages, LoadOptions(quantization=kind))
        assert same(wanted, split_logits(stages, prompt, 3)), num_stages


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_rows_gives_the_product_of_the_rounded_weights(
    kind: Quantization, tmp_path: Path
) -> None:
    """Outputs that fill no block of the kernel, and a bias."""
    folder = tiny_checkpoint(tmp_path, "qwen2", intermediate_size=96)
    oracle: Any = plain_model(folder, kind).get_submodule("model.layers.1.self_attn.k_proj")
    found = load_whole(folder, kind).model.get_submodule("model.layers.1.self_attn.k_proj")
    for rows in (0, 1, 2, 16, 17, 40):
        x = torch.randn(1, rows, 64, generator=torch.Generator().manual_seed(rows)).bfloat16()
        wanted = x.float() @ oracle.weights.T + oracle.bias.float()
        with torch.inference_mode():
            torch.testing.assert_close(found(x).float(), wanted, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_steps_are_single_steps(tmp_path: Path, kind: Quantization) -> None:
    runner = StageRunner(load_whole(tiny_checkpoint(tmp_path, "llama"), kind))
    ids = torch.arange(3, 43)[None]
    single, packed = runner.new_cache(), runner.new_cache()
    wanted = [runner.forward(ids[:, i : i + 1], single, want="hidden") for i in range(40)]
    steps = StepRunner(runner)
    found = steps.forward(ids, packed)
    assert torch.equal(torch.cat(wanted, 1), found)


def test_widths_that_fill_no_group_stay_bfloat16_and_are_named(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "llama", "llama", intermediate_size=72)
    loaded = load_whole(folder, "int4-weight")
    assert [note for note in loaded.notes if "int4-weight" in note] == [
        (
            "6 of the weights stay bfloat16 instead of int4-weight: int4-weight needs input "
            "widths that are multiples of 32 (model.layers.0.mlp.down_proj, "
            "model.layers.1.mlp.down_proj, model.layers.2.mlp.down_proj and 3 more)."
        ),
    ]
    assert loaded.numerics["linear"].startswith("stageline int4-weight")


@pytest.mark.parametrize("kind", KINDS)
def test_experts_are_rounded_too_and_the_split_keeps_the_bits(
    tmp_path: Path, kind: Quantization
) -> None:
    folder = tiny_checkpoint(tmp_path, "qwen3_moe", moe_intermediate_size=64)
    plain = plain_model(folder, kind)
    plain.set_experts_implementation("eager")
    for name, weight in plain.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            for expert in weight.data:
                linear = nn.Linear(expert.shape[1], expert.shape[0], False, dtype=torch.bfloat16)
                linear.weight = nn.Parameter(expert, requires_grad=False)
                expert.copy_(ORACLES[kind](linear).weights)
    wanted = reference_logits(plain, single_prompt(160))
    stages = split_runners(folder, 6, 3, LoadOptions(quantization=kind))
    assert same(wanted, split_logits(stages, single_prompt(160)))
    assert all("one expert at a time" in s.loaded.numerics["experts"] for s in stages)


def test_other_devices_are_refused_with_the_kinds_they_have(tmp_path: Path) -> None:
    from worker.model.errors import UnsupportedModel
    from worker.model.quantize import choose

    folder = tiny_checkpoint(tmp_path, "llama")
    plan = prepare_stage(folder, StageSlice(0, 6, 6), LoadOptions()).plan
    with pytest.raises(UnsupportedModel) as refused:
        choose(plan, "int4-weight", "cuda:0")
    assert str(refused.value) == (
        "--quantization int4-weight works on CPUs alone, and the device here is cuda:0; "
        "use int8 or nf4, or --device cpu"
    )
