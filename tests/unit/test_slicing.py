"""A stage holds, reads and names its own tensors alone, whatever the checkpoint calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny import (
    reference_logits,
    reference_model,
    same,
    single_prompt,
    split_logits,
    split_runners,
    tiny_checkpoint,
)
from worker.model.architecture import Architecture
from worker.model.load import load_stage, prepare_stage
from worker.model.load_options import LoadOptions
from worker.model.plan import plan_stage
from worker.protocol.stage import StageSlice, split_layers
from worker.weights.index import CheckpointIndex

torch.set_num_threads(1)
MIDDLE = StageSlice(2, 4, 6)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def _rewrite(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _assert_splits_exactly(folder: Path, num_stages: int = 3) -> None:
    wanted = reference_logits(reference_model(folder), single_prompt(160), steps=3)
    runners = split_runners(folder, 6, num_stages)
    assert same(wanted, split_logits(runners, single_prompt(160), steps=3))


def test_a_middle_stage_reads_exactly_its_layers(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    request = prepare_stage(folder, MIDDLE, LoadOptions())
    expected = {name for name in request.index.names if ".layers.2." in name or ".3." in name}
    assert set(request.plan.tensors.names) == {*expected, "model.norm.weight"}


def test_a_stage_allocates_its_own_weights_alone(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "mixtral")
    stages = [load_stage(folder, piece, LoadOptions()) for piece in split_layers(6, 3)]
    parameters = [sum(p.numel() for p in s.model.parameters()) for s in stages]
    whole = sum(p.numel() for p in reference_model(folder).parameters())
    # the final norm (64 elements) stays on each stage
    assert sum(parameters) == whole + 2 * 64


def test_every_tensor_is_planned_for_some_stage_and_no_layer_twice(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "qwen3_moe")
    architecture, index = Architecture.read(folder), CheckpointIndex.read(folder)
    plans = [
        plan_stage(architecture, index.names, piece, needs_tokens=False).tensors.names
        for piece in split_layers(6, 4)
    ]
    layers = [name for plan in plans for name in plan if ".layers." in name]
    assert (set().union(*plans), len(layers)) == (set(index.names), len(set(layers)))


def test_towers_of_a_multi_modal_model_are_never_read(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "gemma3")
    request = prepare_stage(folder, StageSlice(0, 6, 6), LoadOptions())
    assert [n for n in request.plan.tensors.names if "vision" in n or "projector" in n] == []


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen3_moe"])
def test_shards_a_stage_does_not_need_may_be_missing(model_type: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", model_type, sharded=True)
    request = prepare_stage(folder, MIDDLE, LoadOptions())
    needed = request.plan.tensors.files(request.index)
    for file in folder.glob("*.safetensors"):
        if file.name not in needed:
            file.unlink()
    loaded = load_stage(folder, MIDDLE, LoadOptions())
    assert loaded.read_bytes == request.plan.tensors.total_bytes(request.index)


def test_legacy_gpt2_names_without_prefix_and_with_mask_buffers_load(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "gpt2")
    tensors = {n.replace("transformer.", ""): t for n, t in _weights(folder).items()}
    for i in range(6):
        tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, 256, 256, dtype=torch.bool)
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    _rewrite(folder, tensors)
    _assert_splits_exactly(folder)


def test_mixtral_experts_stored_one_by_one_load(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "mixtral")
    assert any("block_sparse_moe.experts.0.w1" in name for name in _weights(folder))
    _assert_splits_exactly(folder)


def test_stale_buffers_in_a_checkpoint_are_left_out(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    tensors = _weights(folder)
    for i in range(6):
        tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    _rewrite(folder, tensors)
    _assert_splits_exactly(folder)


def _tied(folder: Path) -> dict[str, torch.Tensor]:
    tiny_checkpoint(folder, "llama", tie_word_embeddings=True)
    return _weights(folder)


def test_tied_weights_stored_under_the_embeddings_reach_the_head(tmp_path: Path) -> None:
    assert "lm_head.weight" not in _tied(tmp_path / "m")
    _assert_splits_exactly(tmp_path / "m")


def test_tied_weights_stored_under_the_head_reach_the_embeddings(tmp_path: Path) -> None:
    tensors = _tied(tmp_path / "m")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    _rewrite(tmp_path / "m", tensors)
    _assert_splits_exactly(tmp_path / "m")


@pytest.mark.parametrize("factor", [1, -2], ids=["equal", "different"])
def test_tied_weights_stored_twice_load_as_transformers_loads_them(
    factor: int, tmp_path: Path
) -> None:
    tensors = _tied(tmp_path / "m")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * factor
    _rewrite(tmp_path / "m", tensors)
    _assert_splits_exactly(tmp_path / "m")


def test_a_whole_tied_model_keeps_one_copy(tmp_path: Path) -> None:
    _tied(tmp_path / "m")
    loaded = load_stage(tmp_path / "m", StageSlice(0, 6, 6), LoadOptions())
    model = loaded.model
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_weights_are_the_same_read_privately_or_mapped(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "mixtral")
    mapped = load_stage(folder, MIDDLE, LoadOptions(mmap=True)).model.state_dict()
    private = load_stage(folder, MIDDLE, LoadOptions(mmap=False)).model.state_dict()
    assert {n: torch.equal(t, private[n]) for n, t in mapped.items()} == dict.fromkeys(mapped, True)


def test_progress_ends_with_every_byte_read(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    seen: list[tuple[int, int]] = []
    loaded = load_stage(folder, MIDDLE, LoadOptions(), progress=lambda *step: seen.append(step))
    assert seen[-1] == (loaded.read_bytes, loaded.read_bytes)


def test_float16_checkpoints_become_bfloat16(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    _rewrite(folder, {name: t.half() for name, t in _weights(folder).items()})
    _assert_splits_exactly(folder)


def test_an_index_with_absolute_shard_names_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama", sharded=True)
    path = folder / "model.safetensors.index.json"
    fields = json.loads(path.read_text())
    fields["weight_map"]["model.norm.weight"] = "../../etc/passwd.safetensors"
    path.write_text(json.dumps(fields))
    with pytest.raises(Exception, match="not a plain file name"):
        prepare_stage(folder, MIDDLE, LoadOptions())
