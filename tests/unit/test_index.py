"""The index finds every tensor, and names the file and the fault of a broken checkpoint."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from worker.weights.header import CheckpointError, TensorEntry, read_header
from worker.weights.index import CheckpointIndex
from worker.weights.select import select_tensors


def _file(path: Path, header: dict[str, Any] | bytes, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def _tensor(begin: int, end: int, dtype: str = "BF16") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 2], "data_offsets": [begin, end]}


def test_offsets_count_from_the_start_of_the_file(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": _tensor(0, 4), "b": _tensor(4, 10)}
    _file(tmp_path / "model.safetensors", header, bytes(10))
    index = CheckpointIndex.read(tmp_path)
    start = 8 + len(json.dumps(header))
    assert [index.entry(name) for name in ("a", "b")] == [
        TensorEntry("a", "model.safetensors", "BF16", (2,), start, 4),
        TensorEntry("b", "model.safetensors", "BF16", (3,), start + 4, 6),
    ]


def test_shards_are_read_only_when_one_of_their_tensors_is_asked_for(tmp_path: Path) -> None:
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    index_file = tmp_path / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"weight_map": weight_map}))
    _file(tmp_path / "one.safetensors", {"a": _tensor(0, 4)}, bytes(4))
    index = CheckpointIndex.read(tmp_path)
    assert (index.names, index.entry("a").size_bytes) == ({"a", "b"}, 4)
    with pytest.raises(CheckpointError, match=r"two\.safetensors is missing"):
        index.entry("b")


def test_a_single_file_goes_before_an_index_as_in_transformers(tmp_path: Path) -> None:
    index_file = tmp_path / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"weight_map": {"old": "old.safetensors"}}))
    _file(tmp_path / "model.safetensors", {"new": _tensor(0, 4)}, bytes(4))
    assert CheckpointIndex.read(tmp_path).names == {"new"}


BROKEN = {
    "zero length": (b"", "is empty"),
    "too short": (b"abc", "truncated"),
    "pickle named safetensors": (b"\x80\x02}q\x00(X\x05\x00\x00\x00abc", "not a SafeTensors file"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
    "huge header": (struct.pack("<Q", 1 << 60) + b"{}", "header would have"),
    "header cut off": (struct.pack("<Q", 90) + b"{}", "header ends at byte 98"),
    "all zeros": (bytes(64), "broken SafeTensors header"),
}


@pytest.mark.parametrize(("raw", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_named_with_its_fault(raw: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(CheckpointError, match="model.safetensors.*" + reason):
        CheckpointIndex.read(tmp_path)


HEADERS: dict[str, tuple[Any, int, str]] = {
    "truncated data": ({"a": _tensor(0, 4)}, 2, "truncated"),
    "trailing bytes": ({"a": _tensor(0, 4)}, 7, "3 trailing bytes"),
    "overlap": ({"a": _tensor(0, 4), "b": _tensor(2, 6)}, 6, "overlaps"),
    "gap": ({"a": _tensor(0, 4), "b": _tensor(6, 8)}, 8, "gap"),
    "negative": ({"a": _tensor(-4, 0)}, 4, "not a whole number"),
    "wrong size": ({"a": {**_tensor(0, 4), "shape": [3]}}, 4, "does not fit"),
    "unknown dtype": ({"a": _tensor(0, 4, "X7")}, 4, "X7"),
    "not an object": (b"[1]", 0, "broken"),
    "not JSON": (b"{", 0, "broken"),
    "deep": (b"[" * 100_000, 0, "broken"),
}


@pytest.mark.parametrize(("header", "size", "reason"), HEADERS.values(), ids=HEADERS.keys())
def test_a_bad_header_is_named_with_its_fault(
    header: Any, size: int, reason: str, tmp_path: Path
) -> None:
    _file(tmp_path / "model.safetensors", header, bytes(size))
    with pytest.raises(CheckpointError, match="model.safetensors.*" + reason):
        CheckpointIndex.read(tmp_path)


def test_pickle_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="only pickle weights"):
        CheckpointIndex.read(tmp_path)


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no weights"):
        CheckpointIndex.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_a_broken_index_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        CheckpointIndex.read(tmp_path)


def test_a_tied_parameter_is_read_from_whichever_name_the_checkpoint_has() -> None:
    tied = {"head": "embed"}
    chosen = [
        select_tensors({name: name for name in stored}, own, tied)
        for stored in (["embed"], ["head"], ["embed", "head"])
        for own in (["embed"], ["head"], ["embed", "head"])
    ]
    assert [(c.names, c.aliases, c.missing) for c in chosen] == [
        (["embed"], {}, ()),
        (["embed"], {"head": "embed"}, ()),
        (["embed"], {}, ()),
        (["head"], {"embed": "head"}, ()),
        (["head"], {}, ()),
        (["head"], {}, ()),
        (["embed"], {}, ()),
        (["head"], {}, ()),
        (["embed", "head"], {}, ()),
    ]


def test_a_file_that_is_removed_after_it_was_found_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.safetensors cannot be read"):
        read_header(tmp_path / "gone.safetensors")
