"""Weights read into private memory are those of the file, by any number of threads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from worker.model.copies import DTYPES, Copier
from worker.model.lazy import LazyTensor, OpenFiles, StackedTensor
from worker.model.pages import empty_tensor
from worker.weights.header import CheckpointError, TensorEntry, read_header


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def written(folder: Path, tensors: dict[str, torch.Tensor]) -> dict[str, TensorEntry]:
    save_file(tensors, folder / "model.safetensors")
    return dict(read_header(folder / "model.safetensors"))


def big_and_small() -> dict[str, torch.Tensor]:
    """Some of each dtype, sizes around one byte, a page and a thread's share."""
    torch.manual_seed(0)
    shapes = {"BF16": (1300, 2049), "F32": (1025, 1024), "I64": (3,), "U8": (0, 4), "F16": ()}
    found: dict[str, torch.Tensor] = {}
    for kind, dtype in DTYPES.items():
        raw = torch.randint(0, 2, (5, 7, 8), dtype=torch.uint8)
        found[kind.lower()] = raw.to(dtype)
    for kind, shape in shapes.items():
        found[f"{kind} {shape}"] = (torch.rand(shape) * 99).to(DTYPES[kind])
    return found


@pytest.mark.parametrize("threads", [1, 3])
def test_copies_are_the_files_bits(tmp_path: Path, threads: int) -> None:
    tensors = big_and_small()
    entries = written(tmp_path, tensors)
    with Copier(threads) as copier:
        copies = {
            name: copier.tensor(tmp_path / "model.safetensors", entry)
            for name, entry in entries.items()
        }
    assert {name: (c.dtype, c.shape, bits(c)) for name, c in copies.items()} == {
        name: (t.dtype, t.shape, bits(t)) for name, t in tensors.items()
    }


@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_that_ends_inside_a_tensor_is_refused(tmp_path: Path, threads: int) -> None:
    (entry,) = written(tmp_path, {"x": torch.ones(3 << 20, dtype=torch.int32)}).values()
    path = tmp_path / "model.safetensors"
    with path.open("rb+") as file:
        file.truncate(entry.offset_bytes + (9 << 20))
    with Copier(threads) as copier, pytest.raises(CheckpointError, match="inside a tensor"):
        copier.tensor(path, entry)


def test_a_tensor_is_found_where_the_file_here_has_it(tmp_path: Path) -> None:
    """Files of a cache hold the same tensors at other offsets than those upstream."""
    tensors = {"a": torch.rand(9), "b": torch.rand(4, 4)}
    upstream = written(tmp_path, tensors)
    (tmp_path / "part").mkdir()
    written(tmp_path / "part", {"b": tensors["b"]})
    place = tmp_path / "part" / "model.safetensors"
    with OpenFiles(lambda _entry: place, mmap=False, threads=1) as files:
        assert bits(files.tensor(upstream["b"])) == bits(tensors["b"])
        with pytest.raises(CheckpointError, match="does not hold a as F32"):
            files.tensor(upstream["a"])


def test_stacked_experts_are_each_in_their_place(tmp_path: Path) -> None:
    tensors = {f"{kind}.{i}": torch.rand(3, 5) for kind in ("gate", "up") for i in range(4)}
    entries = written(tmp_path, tensors)
    read: list[str] = []
    with OpenFiles(lambda _: tmp_path / "model.safetensors", mmap=True, threads=2) as files:
        blocks = [
            [
                LazyTensor(
                    files, entries[f"{kind}.{i}"], lambda e: read.append(e.name), copied=True
                )
                for i in range(4)
            ]
            for kind in ("gate", "up")
        ]
        stacked = StackedTensor(blocks)
        whole, one_by_one = stacked[...], torch.stack(list(stacked))
    expected = torch.stack(
        [torch.cat([tensors[f"gate.{i}"], tensors[f"up.{i}"]]) for i in range(4)]
    )
    assert bits(whole) == bits(one_by_one) == bits(expected)
    assert sorted(read) == sorted([*tensors, *tensors])


def test_a_large_tensor_outlives_everything_it_was_made_with() -> None:
    tensor = empty_tensor((3, 1 << 20), torch.bfloat16)
    tensor.fill_(2.0)
    part = tensor[1]
    del tensor
    assert part.sum(dtype=torch.float64).item() == 2 << 20
