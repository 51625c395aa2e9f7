"""Weights alone in 8 or 4 bits: a split gives the bits of torch's kernels in plain transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

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
KERNEL_ROWS = 16


class Int8(nn.Module):
    """A linear layer rounded here, on torch's kernel for weights of 8 bits."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        self.scales = (weight.abs().amax(1) / 127).bfloat16()
        levels = torch.round(weight / self.scales.float()[:, None])
        self.levels, self.bias = levels.clamp(-127, 127).to(torch.int8), linear.bias
        self.weights = self.levels.float() * self.scales.float()[:, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x[..., 0].numel() <= KERNEL_ROWS
        rows = x.reshape(-1, x.shape[-1])
        return self.finished(torch.ops.aten._weight_int8pack_mm(rows, self.levels, self.scales), x)

    def finished(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = out if self.bias is None else out + self.bias
        return out.reshape(*x.shape[:-1], -1)


class Int4(Int8):
    """The same with 4 bits in groups of 32 that reach from the least to the greatest weight."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        rows, columns = linear.weight.shape
        self.rows = rows
        weight = torch.zeros(-(-rows // 64) * 64, columns // 32, 32)
        weight[:rows] = linear.weight.detach().float().view(rows, -1, 32)
        least, most = weight.min(-1, True).values, weight.max(-1, True).values
        scale = ((most - least) / 15).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16()
        middle = (least + 8 * scale.float()).bfloat16()
        levels = torch.round((weight - middle.float()) / scale.float() + 8).clamp(0, 15)
        self.weights = ((levels - 8) * scale.float() + middle.float()).view(-1, columns)[:rows]
        self.levels = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            levels.int().view(-1, columns), 1
        )
        self.scales = torch.cat([scale, middle], -1).transpose(0, 1).contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x[..., 0].numel() <= KERNEL_ROWS
        rows = x.reshape(-1, x.shape[-1])
        out = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.levels, 32, self.scales)
        return self.finished(out[:, : self.rows], x)


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
def test_a_split_gives_the_bits_of_the_kernels_in_plain_transformers(
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
@pytest.mark.parametrize("shape", [(576, 1536), (40, 96), (256, 8192)])
def test_a_row_of_a_step_has_the_bits_it_has_alone(kind: str, shape: Sequence[int]) -> None:
    """Seen with numbers that cancel each other, where another order of adding shows."""
    rows, columns = shape
    generator = torch.Generator().manual_seed(rows)
    half = torch.randn(rows, columns // 2, generator=generator).bfloat16()
    order = torch.randperm(columns // 2, generator=generator)
    linear = nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16)
    linear.weight = nn.Parameter(torch.cat([half, -half[:, order]], 1), requires_grad=False)
    kernel = ORACLES[kind](linear)
    x = torch.randn(KERNEL_ROWS, columns // 2, generator=generator)
    x = (x * torch.exp2(torch.randint(-6, 7, x.shape, generator=generator))).bfloat16()
    x = torch.cat([x, x[:, order]], 1)
    alone = torch.cat([kernel(row) for row in x.split(1)])
    for count in range(1, KERNEL_ROWS + 1):
        assert torch.equal(kernel(x[:count]), alone[:count]), count


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
    assert loaded.numerics["linear"].startswith("torch int4-weight")


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
