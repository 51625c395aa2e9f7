"""A split model gives the very logits of plain transformers, whatever its architecture.

`tools/arch_table` tries all types, these tests' too, and more thoroughly; CI runs it each time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from tests.support.tiny import (
    load_stages,
    padded_prompts,
    reference_logits,
    reference_model,
    same,
    single_prompt,
    split_logits,
    tiny_checkpoint,
)
from tools.arch_engine import bounds_for
from tools.tiny_configs import recipe_config
from worker.model.load_options import LoadOptions
from worker.model.parts import ModelParts
from worker.model.support import Mode
from worker.model.verdict import verified_types

# One of each way to lay out a model: positions, experts, latent attention, states in the place of
# a cache, layers that share one, kinds of layers that take turns, a float32 stream.
ARCHITECTURES = [
    "bamba", "bloom", "cohere2", "deepseek_v3", "falcon", "gemma3", "gemma3n_text", "gpt2",
    "gpt_oss", "jamba", "lfm2", "llama4_text", "longcat_flash", "mamba", "mixtral", "opt",
    "qwen3_next", "zamba2",
]  # fmt: skip
EVERY_LAYER_APART = ["gpt2", "qwen3_next", "mixtral"]
TWO_OPS = ["gpt2", "llama", "falcon", "bamba", "gemma3", "gemma3n_text", "mamba", "zamba2"]

# an odd thread count would only add noise to the timing
torch.set_num_threads(1)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_split_model_gives_the_bits_of_the_whole(model_type: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", model_type, sharded=True)
    model = reference_model(folder)
    bounds = bounds_for(model.config, ModelParts.of(model).num_layers, 3)
    assert bounds is not None
    stages = load_stages(folder, bounds, LoadOptions())
    for batch in (single_prompt(160), padded_prompts(160)):
        wanted = reference_logits(model, batch, steps=4)
        assert same(wanted, split_logits(stages, batch, steps=4))


@pytest.mark.parametrize("model_type", EVERY_LAYER_APART)
def test_every_layer_can_be_a_stage(model_type: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", model_type)
    wanted = reference_logits(reference_model(folder), single_prompt(160))
    stages = load_stages(folder, range(7), LoadOptions())
    assert same(wanted, split_logits(stages, single_prompt(160)))


@pytest.mark.parametrize("model_type", TWO_OPS)
def test_one_worker_gives_the_same_bits_in_one_op_and_in_two(
    model_type: str, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(tmp_path / "m", model_type)
    model = reference_model(folder)
    batch = single_prompt(160)
    wanted = reference_logits(model, batch, steps=3)
    (runner,) = load_stages(folder, (0, ModelParts.of(model).num_layers), LoadOptions())
    one, two = runner.new_cache(), runner.new_cache()
    x, in_one, in_two = batch.ids, [], []
    for _ in range(4):
        in_one.append(runner.forward(x, one, want="logits"))
        in_two.append(runner.head(runner.forward(x, two, want="hidden")))
        x = in_one[-1].argmax(-1, keepdim=True)
    assert [same(wanted, in_one), same(wanted, in_two)] == [True, True]


def test_the_text_decoder_of_a_multi_modal_checkpoint_runs_alone(tmp_path: Path) -> None:
    model = AutoModelForImageTextToText.from_config(recipe_config("qwen3_5"))
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    wanted = reference_logits(reference_model(tmp_path), single_prompt(160), steps=4)
    stages = load_stages(tmp_path, (0, 2, 4, 6), LoadOptions())
    assert same(wanted, split_logits(stages, single_prompt(160), steps=4))


def test_the_shipped_table_passes_at_least_115_types() -> None:
    modes = [support.mode for support in verified_types().values()]
    assert sum(mode is not Mode.REFUSED for mode in modes) >= 115
