"""The costs of layers and roles add up to what a stage is predicted to need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from tests.support.shapes import deepseek_v3_index
from tests.support.tiny import tiny_checkpoint
from worker.model import kept_runs
from worker.model.architecture import Architecture
from worker.model.bandwidth import ReadSpeed, measure_read_speed
from worker.model.costs import model_costs
from worker.model.dry_run import DryRun, dry_run
from worker.model.load import prepare_stage
from worker.model.load_options import LoadOptions, Quantization
from worker.model.memory import estimate_memory, planned_bytes
from worker.model.plan import StagePlan
from worker.model.quantized_cost import CostQuestion
from worker.protocol.costs import ModelCosts, QuantizedCost, RoleCost
from worker.protocol.stage import StageSlice
from worker.weights.index import CheckpointIndex

MIB = 1 << 20
CONTEXT, CHUNK, LAYERS = 96, 32, 6


def costs_of(folder: Path, *quantizations: Quantization) -> ModelCosts:
    return model_costs(
        CostQuestion(
            architecture=Architecture.read(folder),
            folder=folder,
            index=CheckpointIndex.read(folder),
            device="cpu",
            max_context=CONTEXT,
            prefill_chunk=CHUNK,
            quantizations=quantizations or ("bfloat16",),
        )
    )


def role_of(cost: QuantizedCost, stage: StageSlice) -> RoleCost:
    if stage.is_whole:
        return cost.whole
    return cost.first if stage.is_first else cost.last if stage.is_last else cost.middle


@pytest.fixture
def each_slice_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember what a slice gave on the meta device, as it is the same for each quantization."""
    found: dict[StageSlice, DryRun | None] = {}

    def once(plan: StagePlan, *, max_context: int, prefill_chunk: int) -> DryRun | None:
        stage = plan.sliced.stage
        if stage not in found:
            found[stage] = dry_run(plan, max_context=max_context, prefill_chunk=prefill_chunk)
        return found[stage]

    monkeypatch.setattr(kept_runs, "dry_run", once)


# tied, learned positions, experts, latent attention, sliding window, two kinds of layers
@pytest.mark.usefixtures("each_slice_run_once")
@pytest.mark.parametrize(
    "model_type", ["llama", "gpt2", "qwen3_moe", "deepseek_v3", "mistral", "qwen3_next"]
)
def test_layers_and_role_add_up_to_the_estimate_of_every_slice(
    tmp_path: Path, model_type: str
) -> None:
    folder = tiny_checkpoint(tmp_path / model_type, model_type)
    kinds: tuple[Quantization, ...] = ("bfloat16", "int8", "nf4", "int8-weight", "int4-weight")
    costs = costs_of(folder, *kinds)
    for quantization, cost in costs.quantizations.items():
        cuts = ((0, 2), (1, 5), (4, 6), (0, 6)) if quantization == "bfloat16" else ((0, 2), (4, 6))
        for start, end in cuts:
            stage = StageSlice(start, end, LAYERS)
            options = LoadOptions(quantization=quantization)  # type: ignore[arg-type]
            wanted = estimate_memory(
                prepare_stage(folder, stage, options), max_context=CONTEXT, prefill_chunk=CHUNK
            )
            role = role_of(cost, stage)
            weights_bytes = sum(cost.layer_weights_bytes[start:end]) + role.weights_bytes
            kv_bytes = sum(costs.layer_kv_bytes[start:end])
            process_bytes = wanted.process_bytes + planned_bytes(quantization)
            assert (weights_bytes, kv_bytes, role.process_bytes) == (
                wanted.weights_bytes,
                wanted.kv_bytes,
                process_bytes,
            ), (quantization, stage)
            scratch_bytes = max(role.running_bytes, role.loading_bytes - kv_bytes)
            most_bytes = wanted.scratch_bytes * 11 // 10 + 8 * MIB
            assert wanted.scratch_bytes <= scratch_bytes <= most_bytes, (quantization, stage)
    assert set(costs.quantizations) == set(kinds)


def test_of_experts_only_the_chosen_ones_are_read(tmp_path: Path) -> None:
    cost = costs_of(tiny_checkpoint(tmp_path, "qwen3_moe")).quantizations["bfloat16"]
    # 2 of 4 experts, of 3 matrices of 32 x 64
    unread = 2 * 3 * 32 * 64 * 2
    wanted = tuple(held - unread for held in cost.layer_weights_bytes)
    assert cost.layer_read_bytes == wanted


@pytest.mark.parametrize("tied", [True, False])
def test_the_embedding_is_held_where_it_is_needed_and_read_as_head_alone(
    tmp_path: Path, tied: bool
) -> None:
    folder = tiny_checkpoint(tmp_path, "llama", tie_word_embeddings=tied)
    cost = costs_of(folder).quantizations["bfloat16"]
    rotary = 2 * 8 * 4  # inverse frequencies, and a copy
    small, table = 64 * 2 + rotary, 160 * 64 * 2
    found = [
        (role.weights_bytes, role.read_bytes)
        for role in (cost.first, cost.middle, cost.last, cost.whole)
    ]
    assert found == [
        (small + table, small),
        (small, small),
        (small + table, small + table),
        (small + table * (1 if tied else 2), small + table),
    ]


def test_groups_are_those_that_the_slices_select(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "llama", sharded=True, tie_word_embeddings=True)
    costs, index = costs_of(folder), CheckpointIndex.read(folder)
    ends = ("model.embed_tokens.weight", "model.norm.weight")
    assert (costs.first_groups, costs.last_groups) == (ends, ends)
    # the final norm is small and stays on each stage
    assert costs.layer_groups == tuple(
        (f"model.layers.{i}", "model.norm.weight") for i in range(LAYERS)
    )
    total_bytes = sum(index.entry(name).size_bytes for name in index.names)
    assert sum(group.size_bytes for group in costs.groups.values()) == total_bytes
    assert {file for group in costs.groups.values() for file in group.files} == {
        path.name for path in folder.glob("*.safetensors")
    }


def test_layers_that_share_a_cache_say_where_stages_may_meet(tmp_path: Path) -> None:
    folders = {name: tiny_checkpoint(tmp_path / name, name) for name in ("llama", "gemma3n_text")}
    found = {name: costs_of(folder).cuts for name, folder in folders.items()}
    assert found == {"llama": None, "gemma3n_text": (1, 2)}


def test_a_quantization_that_cannot_be_had_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    costs = costs_of(tiny_checkpoint(tmp_path, "llama"), "bfloat16", "nf4")
    assert list(costs.quantizations) == ["bfloat16"]
    assert costs.unavailable["nf4"].startswith("--quantization nf4 needs the package bitsandbytes")


def test_a_671b_shape_takes_less_than_a_second_for_a_thousand_tensors(tmp_path: Path) -> None:
    """The index is made up: the names and shapes of the published checkpoint, no file."""
    config = DeepseekV3Config()
    config.architectures = ["DeepseekV3ForCausalLM"]
    index = deepseek_v3_index(config)
    assert len(index.names) > 90_000
    question = CostQuestion(
        architecture=Architecture(config, DeepseekV3ForCausalLM),
        folder=tmp_path,
        index=index,
        device="cpu",
        max_context=8192,
        prefill_chunk=256,
    )
    costs = model_costs(question)
    plain = costs.quantizations["bfloat16"]
    whole_bytes = sum(plain.layer_weights_bytes) + plain.whole.weights_bytes
    assert whole_bytes == pytest.approx(671e9 * 2, rel=0.01)
    # 37 billion weights of it work on a token; the embedding is looked up
    read_bytes = sum(plain.layer_read_bytes) + plain.whole.read_bytes
    assert read_bytes == pytest.approx((37.5e9 - 129280 * 7168) * 2, rel=0.02)
    assert sum(costs.layer_kv_bytes) == 61 * 8192 * 576 * 2
    assert len(costs.layer_groups) == 61


def test_reading_speed_is_a_number_unless_there_is_no_room() -> None:
    torch.set_num_threads(1)
    assert measure_read_speed("cpu", 100 * MIB) == ReadSpeed(0.0, 0.0)
    found = measure_read_speed("cpu", 1024 * MIB)
    assert 0.01 < found.linear_gbps <= found.memory_gbps < 10_000
