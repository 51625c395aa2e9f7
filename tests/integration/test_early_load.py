"""A stage whose weights were read while libraries were imported has the weights of the file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny import reference_model, tiny_checkpoint
from worker.config import WorkerConfig
from worker.huge_pages import LEAST_BYTES
from worker.model import copies
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
    config = WorkerConfig(model_id=str(folder), stage=stage, num_stages=num_stages, device="cpu")
    assert read_ahead(config, folder, early) > 0
    return early


def held(early: EarlyWeights) -> int:
    with early.held() as num_bytes:
        return num_bytes


def watched(
    early: EarlyWeights, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], list[mmap.mmap]]:
    """Return what will be told while loading: the bytes of each read, and the room taken."""
    read: list[int] = []
    rooms: list[mmap.mmap] = []
    plain_read, plain_take = copies._read, early.take_room

    def reading(path: Path, offset_bytes: int, target: memoryview) -> None:
        read.append(len(target))
        plain_read(path, offset_bytes, target)

    def taking(size_bytes: int) -> mmap.mmap | None:
        room = plain_take(size_bytes)
        rooms.extend([] if room is None else [room])
        return room

    monkeypatch.setattr(copies, "_read", reading)
    monkeypatch.setattr(early, "take_room", taking)
    return read, rooms


@pytest.mark.parametrize(("stage", "num_stages"), [(0, 1), (0, 3), (1, 3), (2, 3)])
def test_all_that_is_kept_as_it_is_was_read_early(
    llama: Path, stage: int, num_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    read, rooms = watched(early, monkeypatch)
    loaded = load_prepared(request, early=early)
    assert held(early) == 0
    # nothing of what was read early is read again, and small weights lie in the room that was had
    assert 0 < max(read) < LEAST_BYTES
    (room,) = rooms
    first = torch.frombuffer(room, dtype=torch.uint8).data_ptr()
    inside = [first <= t.data_ptr() < first + len(room) for t in loaded.model.parameters()]
    assert sum(inside) == len(inside) - 3 * each
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
