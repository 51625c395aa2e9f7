"""Reading ahead asks for the bytes of the stage's layers, and never fails a start."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from worker.config import WorkerConfig
from worker.weights import read_ahead as module
from worker.weights.read_ahead import available_bytes, read_ahead

LAYER_BYTES, OTHER_BYTES = 64, 32


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
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 4}')
    return tmp_path


def stage(index: int, num_stages: int = 4) -> WorkerConfig:
    return WorkerConfig(model_id="m", stage=index, num_stages=num_stages)


def test_a_stage_asks_for_its_own_layers_and_an_end_for_the_rest_too(folder: Path) -> None:
    asked = [read_ahead(stage(index), folder) for index in range(4)]
    end_bytes = LAYER_BYTES + OTHER_BYTES
    assert asked == [end_bytes, LAYER_BYTES, LAYER_BYTES, end_bytes]


@pytest.mark.parametrize("config", ["{}", "[]", "{", '{"num_hidden_layers": 1}'])
def test_a_model_whose_layers_cannot_be_told_is_left_alone(folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)
    assert read_ahead(stage(1), folder) == 0


def test_weights_that_are_not_there_are_left_alone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert read_ahead(stage(0), folder) == 0


def test_a_system_that_is_short_of_memory_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: 2 * LAYER_BYTES - 1)
    assert read_ahead(stage(1), folder) == 0


def test_available_memory_is_what_the_kernel_says_and_0_where_it_says_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    7 kB\n")
    (tmp_path / "odd").write_text("MemAvailable:\n")
    found = [available_bytes(tmp_path / name) for name in ("meminfo", "odd", "none")]
    assert found == [7 * 1024, 0, 0]
