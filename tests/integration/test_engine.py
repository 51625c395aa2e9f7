"""The fast engine gives the bits that transformers gives with the same linear kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.tiny import (
    Batch,
    load_stages,
    reference_logits,
    reference_model,
    same,
    single_prompt,
    split_logits,
    tiny_checkpoint,
)
from worker.model import tape_writes
from worker.model.attend_text import AttendShape
from worker.model.attention import attention, is_known, op_of_one
from worker.model.errors import CannotCrop
from worker.model.load_options import LoadOptions
from worker.model.run import StageRunner
from worker.model.turned_linear import TurnedLinear
from worker.model.wide_program import can_be_wide

# Sums of more than 4096 numbers: stock torch adds up those of a single row in another order.
WIDE = {"hidden_size": 128, "intermediate_size": 4160, "num_hidden_layers": 3}
SHORTENED = ["bloom", "falcon", "gemma", "gpt_neox", "granite", "llama", "opt", "qwen3_moe"]

torch.set_num_threads(1)


@contextmanager
def one_row_as_one_of_two() -> Iterator[None]:
    """Have every linear of transformers compute a single row with the kernels of two."""
    stock = nn.Linear.forward

    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if x.numel() != x.shape[-1]:
            return stock(self, x)
        two = functional.linear(x.reshape(1, -1).repeat(2, 1), self.weight, self.bias)
        return two[0].view(*x.shape[:-1], -1)

    nn.Linear.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Linear.forward = stock  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama whose step tells the kernels apart."""
    return tiny_checkpoint(tmp_path_factory.mktemp("wide") / "m", "llama", **WIDE)


def test_a_fast_pipeline_gives_the_bits_of_the_whole_with_the_same_kernels(wide: Path) -> None:
    with one_row_as_one_of_two():
        wanted = reference_logits(reference_model(wide), single_prompt(160))
    stages = load_stages(wide, (0, 1, 3), LoadOptions())
    modules = [m for stage in stages for m in stage.loaded.model.modules()]
    assert any(type(module) is TurnedLinear for module in modules)
    assert all(stage.decode_step for stage in stages)
    assert same(wanted, split_logits(stages, single_prompt(160)))


@pytest.mark.parametrize("tokens", [33, 64, 100, 256])
def test_prompts_of_many_tokens_are_those_of_plain_transformers(wide: Path, tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    prompt = Batch(torch.randint(3, 160, (1, tokens), generator=generator))
    with one_row_as_one_of_two():
        wanted = reference_logits(reference_model(wide), prompt)
    stages = load_stages(wide, (0, 1, 3), LoadOptions())
    assert same(wanted, split_logits(stages, prompt))
    modules = [m for stage in stages for m in stage.loaded.model.modules()]
    products = {m.wide for m in modules if isinstance(m, TurnedLinear)}
    used = {bool(own and any(own._pieces.values())) for own in products}
    assert used == {can_be_wide() and "ONEDNN_MAX_CPU_ISA" not in os.environ}


def test_stock_is_the_bits_of_plain_transformers(wide: Path) -> None:
    wanted = reference_logits(reference_model(wide), single_prompt(160))
    stages = load_stages(wide, (0, 1, 3), LoadOptions(engine="stock"))
    assert [stage.decode_step for stage in stages] == [None, None]
    assert same(wanted, split_logits(stages, single_prompt(160)))


# Torch attends 512 positions at a time.
@pytest.mark.parametrize("prompt_tokens", [6, 490, 1005])
def test_steps_far_on_are_those_of_plain_transformers(
    prompt_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    sizes = {"hidden_size": 128, "max_position_embeddings": 2048}
    folder = tiny_checkpoint(tmp_path / "m", "llama", **heads, **sizes)
    generator = torch.Generator().manual_seed(9)
    batch = Batch(torch.randint(3, 160, (1, prompt_tokens), generator=generator))
    wanted = reference_logits(reference_model(folder), batch, 40)
    used: list[int] = []
    monkeypatch.setattr(tape_writes, "op_of_one", lambda: [used.append(1), op_of_one()][1])
    stages = load_stages(folder, (0, 2, 6), LoadOptions())
    assert all(stage.decode_step for stage in stages)
    # by code of our own where it has the bits, in every layer
    shape = AttendShape(4, 2, 32, 32**-0.5)
    assert len(used) == (6 if is_known() and attention(shape) else 0)
    assert same(wanted, split_logits(stages, batch, 40))


@pytest.mark.parametrize("model_type", SHORTENED)
def test_these_decode_without_their_python(model_type: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", model_type)
    wanted = reference_logits(reference_model(folder), single_prompt(160))
    stages = load_stages(folder, (0, 3, 6), LoadOptions())
    assert all(stage.decode_step for stage in stages)
    assert same(wanted, split_logits(stages, single_prompt(160)))


@pytest.fixture(scope="module")
def both(wide: Path) -> list[StageRunner]:
    """The same middle stage with and without the short way."""
    fast, plain = (load_stages(wide, (0, 1, 2, 3), LoadOptions())[1] for _ in range(2))
    plain.decode_step = None
    return [fast, plain]


def hidden(runner: StageRunner, count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, count, runner.width, generator=generator).to(torch.bfloat16)


def test_steps_go_on_across_growth_and_after_a_crop(both: list[StageRunner]) -> None:
    found = []
    for runner in both:
        cache = runner.new_cache()
        outputs = [runner.forward(hidden(runner, 60, 0), cache)]
        outputs += [runner.forward(hidden(runner, 1, i), cache) for i in range(45)]
        cache.crop_to(cache.seen - 1)
        cache.crop_to(62)
        outputs += [runner.forward(hidden(runner, 1, i), cache) for i in range(5)]
        outputs += [runner.forward(hidden(runner, 3, 9), cache)]
        layer: Any = cache.layers[1]
        found.append([*outputs, layer.keys, layer.values])
    assert same(*found)


def test_a_step_that_fails_changes_nothing(both: list[StageRunner]) -> None:
    runner = both[0]
    cache, wanted = runner.new_cache(), runner.new_cache()
    for each in (cache, wanted):
        runner.forward(hidden(runner, 4, 0), each)
    with pytest.raises(RuntimeError):
        runner.forward(hidden(runner, 1, 1)[..., :-8], cache)
    assert cache.seen == 4
    with pytest.raises(CannotCrop):
        cache.crop_to(5)
    step = [runner.forward(hidden(runner, 1, 1), each) for each in (cache, wanted)]
    assert torch.equal(*step)
