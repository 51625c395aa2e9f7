"""What cannot be served is refused before any weight is read, with the reason and a way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny import tiny_checkpoint
from worker.model.errors import LoadError, UnsupportedModel
from worker.model.load import load_stage, prepare_stage
from worker.model.load_options import LoadOptions
from worker.protocol.stage import StageSlice
from worker.weights.header import CheckpointError

torch.set_num_threads(1)
WHOLE = StageSlice(0, 6, 6)
MIDDLE = StageSlice(2, 4, 6)


def _config(folder: Path, **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def _refusal(folder: Path, stage: StageSlice = WHOLE, **options: Any) -> str:
    with pytest.raises(UnsupportedModel) as caught:
        prepare_stage(folder, stage, LoadOptions(**options))
    return str(caught.value)


def test_a_folder_without_config_is_no_model(tmp_path: Path) -> None:
    assert "config.json is missing" in _refusal(tmp_path)


def test_a_broken_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert "config.json cannot be read" in _refusal(tmp_path)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_type": "no_such_type"}, "'no_such_type' in"),
        ({}, "model type None"),
        ({"model_type": ["llama"]}, "model type ['llama']"),
        ({"model_type": "own", "auto_map": "modeling_own.Own"}, "'own' in"),
        ({"model_type": "t5"}, "encoder-decoder"),
        ({"model_type": "bart"}, "encoder-decoder"),
        ({"model_type": "vit"}, "no causal language model"),
        (
            {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}},
            "--trust-remote-code",
        ),
    ],
)
def test_a_model_type_that_cannot_be_served_is_refused(
    fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    assert reason in _refusal(_config(tmp_path / "m", **fields))


def test_a_stored_quantization_without_its_library_is_named(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(fields))
    assert "GPTQ" in _refusal(folder)


def test_a_value_the_config_refuses_is_told_with_its_reason(tmp_path: Path) -> None:
    folder = _config(tmp_path / "m", model_type="llama", num_hidden_layers="six")
    assert "expected int" in _refusal(folder)


def test_a_config_that_no_model_can_be_built_from_is_named(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    fields = json.loads((folder / "config.json").read_text())
    fields["rope_parameters"] = {"rope_type": "no_such_rope", "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(fields))
    assert "no_such_rope" in _refusal(folder)


def test_quantizing_a_quantized_checkpoint_is_a_conflict(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(fields))
    assert "already quantized (fp8)" in _refusal(folder, quantization="nf4")


def test_a_cut_between_layers_that_share_a_cache_names_the_legal_ones(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "gemma3n_text")
    text = _refusal(folder, StageSlice(0, 4, 6))
    assert "cannot be cut at 4" in text and "legal cut positions are: 1, 2" in text


def test_a_slice_of_another_number_of_layers_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    assert "the model has 6 layers" in _refusal(folder, StageSlice(0, 4, 8))


def test_an_untied_head_without_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama", tie_word_embeddings=False)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "tie_word_embeddings is false" in _refusal(folder)


def test_a_parameter_without_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.3.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert "no weights for model.layers.3.mlp.up_proj.weight" in _refusal(folder, MIDDLE)


def test_a_needed_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama", sharded=True)
    request = prepare_stage(folder, MIDDLE, LoadOptions())
    gone = request.plan.tensors.files(request.index)[0]
    (folder / gone).unlink()
    with pytest.raises(CheckpointError, match=f"{gone} is missing"):
        load_stage(folder, MIDDLE, LoadOptions())


def test_weights_of_another_shape_are_a_load_error(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.ones(3, 3, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    seen = r"up_proj\.weight \(stored \[3, 3\], config\.json needs \[128, 64\]\)"
    with pytest.raises(LoadError, match=f"loading layers 2:4 .*{seen}"):
        load_stage(folder, MIDDLE, LoadOptions())
