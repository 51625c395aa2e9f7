"""The prediction is exact where it can be, and a refusal says everything one needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from tests.support.tiny import tiny_checkpoint
from worker.failures import LoadFailed
from worker.model import quantize
from worker.model.errors import UnsupportedModel
from worker.model.limits import FreeMemory
from worker.model.load import load_prepared, prepare_stage
from worker.model.load_options import LoadOptions, Quantization
from worker.model.loaded import StageRequest
from worker.model.memory import MemoryEstimate, estimate_memory
from worker.model.packing import pack_int8, pack_nf4
from worker.model.refusal import check_memory
from worker.model.run import StageRunner
from worker.protocol.exits import ExitCode
from worker.protocol.stage import StageSlice

MIB = 1 << 20


def prepare(
    folder: Path, quantization: Quantization = "bfloat16", stage: StageSlice | None = None
) -> StageRequest:
    options = LoadOptions(quantization=quantization)
    return prepare_stage(folder, stage or StageSlice(0, 6, 6), options)


@pytest.mark.parametrize("quantization", ["bfloat16", "int8", "nf4", "int8-weight", "int4-weight"])
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen3_moe", "deepseek_v3"])
def test_weights_and_cache_are_predicted_to_the_byte(
    tmp_path: Path, model_type: str, quantization: Quantization
) -> None:
    folder = tiny_checkpoint(tmp_path / model_type, model_type)
    request = prepare(folder, quantization, StageSlice(2, 6, 6))
    predicted = estimate_memory(request, max_context=96, prefill_chunk=32)
    runner = StageRunner(load_prepared(request))
    cache = runner.new_cache(max_length=96)
    for _ in range(3):
        hidden = torch.zeros(1, 32, runner.width, dtype=runner.wire_dtype)
        runner.forward(hidden, cache, want="logits")
    found = (runner.loaded.weight_bytes, cache.size_bytes)
    assert (predicted.weights_bytes, predicted.kv_bytes) == found


def test_sliding_layers_count_their_window_and_not_the_context(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "mistral", "mistral")
    short = estimate_memory(prepare(folder), max_context=128, prefill_chunk=8)
    long = estimate_memory(prepare(folder), max_context=256, prefill_chunk=8)
    assert short.kv_bytes == long.kv_bytes


def test_refusal_names_parts_sum_free_and_what_would_fit(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "llama", "llama", hidden_size=512, intermediate_size=2048)
    request = prepare(folder)
    predicted = estimate_memory(request, max_context=256, prefill_chunk=32)
    free = FreeMemory(predicted.need_bytes - 4 * MIB, "cgroup")
    with pytest.raises(LoadFailed) as refused:
        check_memory(request, predicted, free)
    assert refused.value.code is ExitCode.OUT_OF_MEMORY
    assert refused.value.text.startswith("layers 0:6 of the model need ")
    for part in ("weights as bfloat16 + ", "KV cache at 256 positions + ", "scratch + "):
        assert part in refused.value.text
    assert "are free on cpu (cgroup); " in refused.value.text
    assert refused.value.text.endswith(
        "layers 0:5 would fit, or --quantization int8 would fit, or --quantization nf4 would fit, "
        "or --quantization int8-weight would fit, or --quantization int4-weight would fit"
    )


def test_layers_that_a_refusal_names_do_fit(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "llama", "llama", hidden_size=512, intermediate_size=2048)
    request = prepare(folder)
    predicted = estimate_memory(request, max_context=256, prefill_chunk=32)
    free = FreeMemory(predicted.need_bytes - 4 * MIB, "cgroup")
    fewer = prepare(folder, stage=StageSlice(0, 5, 6))
    check_memory(fewer, estimate_memory(fewer, max_context=256, prefill_chunk=32), free)


def test_shorter_context_is_advised_when_it_is_enough(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "llama", "llama", max_position_embeddings=4096)
    request = prepare(folder)
    predicted = estimate_memory(request, max_context=4096, prefill_chunk=32)
    free = FreeMemory(predicted.need_bytes - predicted.kv_bytes // 2, "memory")
    with pytest.raises(LoadFailed, match="--max-context 2048 would fit"):
        check_memory(request, predicted, free)


def test_what_needs_exactly_what_is_free_is_not_refused(tmp_path: Path) -> None:
    request = prepare(tiny_checkpoint(tmp_path / "llama", "llama"))
    need = MemoryEstimate(1, 2, 3, 4, max_context=8)
    check_memory(request, need, FreeMemory(10, "memory"))


def test_a_671b_shape_is_predicted_without_its_weights(tmp_path: Path) -> None:
    """The index alone is there: the prediction also works before anything is fetched."""
    config = DeepseekV3Config()
    config.architectures = ["DeepseekV3ForCausalLM"]
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        names = list(DeepseekV3ForCausalLM(config).state_dict())
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    stage = StageSlice(10, 14, 61)
    plain, nf4 = (
        estimate_memory(prepare(tmp_path, q, stage), max_context=8192, prefill_chunk=256)
        for q in ("bfloat16", "nf4")
    )
    # 4 layers of 256 experts and one shared, 3 matrices of 7168 x 2048 each
    assert plain.weights_bytes == pytest.approx(4 * 257 * 3 * 7168 * 2048 * 2, rel=0.03)
    assert nf4.weights_bytes == pytest.approx(plain.weights_bytes * (4 + 0.5) / 16, rel=0.03)
    # the compressed latent: 512 + 64 elements for each position and layer
    assert plain.kv_bytes == 4 * 8192 * 576 * 2
    assert nf4.notes == ()


def test_missing_bitsandbytes_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    request = prepare(tiny_checkpoint(tmp_path / "llama", "llama"), "nf4")
    with pytest.raises(UnsupportedModel) as refused:
        estimate_memory(request, max_context=64, prefill_chunk=32)
    assert str(refused.value).startswith("--quantization nf4 needs the package bitsandbytes, which")
    assert str(refused.value).endswith(
        "run `pip install bitsandbytes` or use --quantization bfloat16"
    )


def test_quantizing_in_pieces_gives_the_bits_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bitsandbytes import functional

    monkeypatch.setattr("worker.model.packing.PIECE_ELEMENTS", 1 << 10)
    quantize.require_bitsandbytes("nf4")
    weight = torch.randn(96, 192, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    whole, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    rows, scales, _ = functional.int8_vectorwise_quant(weight.half())
    wanted = (whole, state.absmax, rows, scales)
    found = (*pack_nf4(weight), *pack_int8(weight))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
