"""Reading ahead asks for the bytes of the stage's layers, and never fails a start."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from worker.config import WorkerConfig
from worker.weights import read_ahead as module
from worker.weights.early import EarlyWeights
from worker.weights.read_ahead import available_bytes, read_ahead

LAYER_BYTES, OTHER_BYTES = 8 << 20, 4 << 20
PLAIN = '{"num_hidden_layers": 4}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {"model.embed_tokens.weight": OTHER_BYTES} | {
        f"model.layers.{layer}.w": LAYER_BYTES for layer in range(4)
    }
    header: dict[str, Any] = {}
    end = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    data = struct.pack("<Q", len(raw)) + raw + bytes(end)
    (tmp_path / "model.safetensors").write_bytes(data)
    (tmp_path / "config.json").write_text(PLAIN)
    return tmp_path


def stage(index: int, num_stages: int = 4, **more: Any) -> WorkerConfig:
    return WorkerConfig(
        model_id="m", stage=index, num_stages=num_stages, **{"device": "cpu", **more}
    )


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the host that the tests run on bound nothing."""
    monkeypatch.setattr(module, "available_bytes", lambda: 1 << 40)
    monkeypatch.setattr(module, "cgroup_free_bytes", list)
    infinity = module.resource.RLIM_INFINITY
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (infinity, infinity))


def held_bytes(config: WorkerConfig, folder: Path) -> int:
    """Read ahead; return the bytes that are in memory then."""
    early = EarlyWeights()
    read_ahead(config, folder, early)
    with early.held() as num_bytes:
        return num_bytes


def test_a_stage_asks_for_its_own_layers_and_an_end_for_the_rest_too(folder: Path) -> None:
    asked = [read_ahead(stage(index), folder, EarlyWeights()) for index in range(4)]
    end_bytes = LAYER_BYTES + OTHER_BYTES
    assert asked == [end_bytes, LAYER_BYTES, LAYER_BYTES, end_bytes]


@pytest.mark.parametrize("config", ["{}", "[]", "{", '{"num_hidden_layers": 1}'])
def test_a_model_whose_layers_cannot_be_told_is_left_alone(folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)
    assert read_ahead(stage(1), folder, EarlyWeights()) == 0


def test_weights_that_are_not_there_are_left_alone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert read_ahead(stage(0), folder, EarlyWeights()) == 0


def test_a_system_that_is_short_of_memory_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: 2 * LAYER_BYTES - 1)
    assert read_ahead(stage(1), folder, EarlyWeights()) == 0


def test_the_layers_are_in_memory_and_all_of_a_whole_model(folder: Path) -> None:
    held = [held_bytes(stage(index, count), folder) for index, count in ((0, 2), (1, 2), (0, 1))]
    assert held == [2 * LAYER_BYTES, 2 * LAYER_BYTES, 4 * LAYER_BYTES + OTHER_BYTES]


@pytest.mark.parametrize(
    "more",
    [{"engine": "stock"}, {"quantization": "nf4"}, {"device": "cuda:0"}, {"engine": "graphs"}],
    ids=str,
)
def test_what_would_not_stay_as_it_is_is_asked_for_only(folder: Path, more: dict[str, str]) -> None:
    early = EarlyWeights()
    assert read_ahead(stage(1, **more), folder, early) == LAYER_BYTES
    with early.held() as num_bytes:
        assert num_bytes == 0


@pytest.mark.parametrize("part", ["text_config", "quantization_config"])
def test_nor_are_models_of_several_parts_or_rounded_ones_held(folder: Path, part: str) -> None:
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 4, part: {}}))
    assert held_bytes(stage(1), folder) == 0


@pytest.mark.parametrize(
    ("limit_bytes", "held"), [(2 * LAYER_BYTES - 1, 0), (2 * LAYER_BYTES, LAYER_BYTES)]
)
def test_no_more_than_half_of_a_limit_is_held(
    folder: Path, limit_bytes: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert held_bytes(stage(1, memory_limit_bytes=limit_bytes), folder) == held
    monkeypatch.setattr(module, "cgroup_free_bytes", lambda: [1 << 60, limit_bytes])
    assert held_bytes(stage(1), folder) == held


def test_a_process_of_few_addresses_holds_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (1 << 40, 1 << 40))
    assert held_bytes(stage(1), folder) == 0


def test_an_accelerator_is_left_its_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_ACCELERATORS", (str(tmp_path),))
    held = [held_bytes(stage(1, device=device), folder) for device in ("auto", "cpu")]
    assert held == [0, LAYER_BYTES]


def test_available_memory_is_what_the_kernel_says_and_0_where_it_says_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    7 kB\n")
    (tmp_path / "odd").write_text("MemAvailable:\n")
    found = [available_bytes(tmp_path / name) for name in ("meminfo", "odd", "none")]
    assert found == [7 * 1024, 0, 0]
