"""A stage whose weights were read while libraries were imported has the weights of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny import reference_model, tiny_checkpoint
from worker.config import WorkerConfig
from worker.huge_pages import LEAST_BYTES
from worker.model.load import load_prepared, prepare_stage, whole_tensors
from worker.model.load_options import LoadOptions
from worker.model.loaded import StageRequest
from worker.protocol.stage import StageSlice
from worker.weights.early import EarlyWeights
from worker.weights.read_ahead import read_ahead

LAYERS = 6
# Three matrices of each layer are large with it.
WIDE: dict[str, Any] = {"intermediate_size": 33_000}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("llama"), "llama", sharded=True, **WIDE)


def planned(folder: Path, stage: StageSlice, **options: Any) -> StageRequest:
    return prepare_stage(folder, stage, LoadOptions(**options))


def read_early(folder: Path, stage: int, num_stages: int) -> EarlyWeights:
    early = EarlyWeights()
    config = WorkerConfig(model_id=str(folder), stage=stage, num_stages=num_stages)
    assert read_ahead(config, folder, early) > 0
    return early


def held(early: EarlyWeights) -> int:
    with early.held() as num_bytes:
        return num_bytes


@pytest.mark.parametrize(("stage", "num_stages"), [(0, 1), (0, 3), (1, 3), (2, 3)])
def test_all_that_is_kept_as_it_is_was_read_early(llama: Path, stage: int, num_stages: int) -> None:
    each = LAYERS // num_stages
    request = planned(llama, StageSlice(stage * each, stage * each + each, LAYERS))
    early = read_early(llama, stage, num_stages)
    early.keep(whole_tensors(request))
    index = request.index
    sizes = [index.entry(name).size_bytes for name in index.names]
    large_bytes = each * sum(size for size in sizes if size >= LEAST_BYTES) // LAYERS
    before_bytes = held(early)
    # what is small lies side by side, with some bytes between
    assert large_bytes < before_bytes < large_bytes * 1.05
    loaded = load_prepared(request, early=early)
    assert held(early) == 0
    whole = reference_model(llama).state_dict()
    own = loaded.model.state_dict()
    assert len(own) >= 9 * each
    for name, tensor in own.items():
        assert torch.equal(tensor, whole[name]), name


@pytest.mark.parametrize("options", [{"engine": "stock"}, {"quantization": "int8-weight"}], ids=str)
def test_a_stage_that_keeps_nothing_as_it_is_gives_the_memory_back(
    llama: Path, options: dict[str, str]
) -> None:
    early = read_early(llama, 1, 3)
    assert held(early) > 0
    early.keep(whole_tensors(planned(llama, StageSlice(2, 4, LAYERS), **options)))
    assert held(early) == 0


def test_experts_are_not_read_early(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "mixtral", num_hidden_layers=1, **WIDE)
    assert 0 < held(read_early(folder, 0, 1)) < LEAST_BYTES
