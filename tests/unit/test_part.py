"""A part: an ordinary SafeTensors file, whole or not there, that says where it came from."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.remote import COMMIT, ENDPOINT, REPO, MemorySource, Remote, layered, quiet_meter
from worker.failures import LoadFailed
from worker.weights.claims import Claims
from worker.weights.filling import Filling
from worker.weights.header import CheckpointError
from worker.weights.journal import Journal
from worker.weights.layout import Origin, PartLayout, part_key
from worker.weights.part import Part
from worker.weights.published import PublishedPart
from worker.weights.ranges import PIECE_BYTES
from worker.weights.store import Store

ORIGIN = Origin(ENDPOINT, REPO, COMMIT)


@pytest.fixture
def remote() -> Remote:
    made = layered(2)
    made.add(
        "odd.safetensors",
        [
            ("model.layers.0.bytes", "U8", (5,)),
            ("model.layers.0.none", "F32", (0, 4)),
            ("model.layers.0.big", "U8", (PIECE_BYTES + 3,)),
        ],
        etag=None,
    )
    return made


def layer(remote: Remote, number: int = 0) -> PartLayout:
    key = f"model.layers.{number}"
    entries = [e for e in remote.entries.values() if part_key(e.name) == key]
    return PartLayout.of(ORIGIN, key, entries, remote.hub_files)


def fill(folder: Path, layout: PartLayout, remote: Remote) -> Path:
    """Fill a part; return its file."""
    part = Part(folder, layout)
    source = MemorySource(remote.files)
    claims = Claims(Store.open(folder, ENDPOINT, REPO, COMMIT))
    Filling(source, [part], remote.hub_files, claims, quiet_meter()).run(2)
    return part.path


def test_a_part_is_read_by_the_safetensors_library_and_each_tensor_is_aligned(
    remote: Remote, tmp_path: Path
) -> None:
    layout = layer(remote)
    raw = fill(tmp_path, layout, remote).read_bytes()
    found = dict(safetensors.deserialize(raw))
    assert {name: bytes(row["data"]) for name, row in found.items()} == {
        entry.name: remote.tensors[entry.name] for entry in layout.tensors
    }
    assert {name: (row["dtype"], tuple(row["shape"])) for name, row in found.items()} == {
        entry.name: (entry.dtype, entry.shape) for entry in layout.tensors
    }
    part = PublishedPart.read(fill(tmp_path, layout, remote))
    item_bytes = {"F32": 4, "BF16": 2, "U8": 1}
    assert all(e.offset_bytes % item_bytes[e.dtype] == 0 for e in part.entries.values())


def test_a_part_says_where_each_tensor_came_from_and_its_checksums_are_right(
    remote: Remote, tmp_path: Path
) -> None:
    part = PublishedPart.read(fill(tmp_path, layer(remote), remote))
    assert part.origin == ORIGIN
    assert {name: (s.file, s.etag) for name, s in part.sources.items()} == {
        name: (remote.entries[name].file, remote.hub_files[remote.entries[name].file].etag)
        for name in part.entries
    }
    assert len(part.sources["model.layers.0.big"].hashes) == 2
    assert list(part.flaws()) == []


def test_a_part_has_the_same_name_whatever_the_order_and_another_with_other_tensors(
    remote: Remote,
) -> None:
    layout = layer(remote)
    files = remote.hub_files
    again = PartLayout.of(ORIGIN, layout.key, layout.tensors[::-1], files)
    fewer = PartLayout.of(ORIGIN, layout.key, layout.tensors[1:], files)
    assert (again, again.name) == (layout, layout.name)
    assert fewer.name != layout.name
    assert layout.name.startswith("model.layers.0-")


def test_a_part_that_is_not_whole_has_no_valid_header(remote: Remote, tmp_path: Path) -> None:
    layout = layer(remote)
    part = Part(tmp_path, layout)
    piece = next(iter(layout.pieces(0)))
    part.write(piece.offset_bytes, memoryview(bytes(piece.end - piece.start)))
    part.finish(piece.index, "0" * 64, piece.end - piece.start)
    part.sync()
    part.close()
    (partial,) = tmp_path.glob("*.partial")
    with pytest.raises(CheckpointError):
        PublishedPart.read(partial)
    assert not part.path.exists()


Damage = Callable[[bytearray], Any]
HEADER_DAMAGE: dict[str, Damage] = {
    "cut": lambda raw: raw.__delitem__(slice(-1, None)),
    "emptied": lambda raw: raw.clear(),
    "lengthened": lambda raw: raw.append(0),
    "length": lambda raw: raw.__setitem__(0, raw[0] ^ 64),
    "dtype": lambda raw: raw.__setitem__(slice(None), raw.replace(b'"BF16"', b'"F16" ')),
    "name": lambda raw: raw.__setitem__(slice(None), raw.replace(b"norm", b"gate")),
    "commit": lambda raw: raw.__setitem__(slice(None), raw.replace(b"c" * 40, b"d" * 40)),
    "etag": lambda raw: raw.__setitem__(slice(None), raw.replace(b'\\"e1\\"', b'\\"e2\\"')),
}


@pytest.mark.parametrize("damage", HEADER_DAMAGE.values(), ids=HEADER_DAMAGE.keys())
def test_a_part_with_another_size_or_header_than_was_written_is_refused(
    damage: Damage, remote: Remote, tmp_path: Path
) -> None:
    path = fill(tmp_path, layer(remote), remote)
    raw = bytearray(path.read_bytes())
    damage(raw)
    path.write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        PublishedPart.read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@settings(max_examples=60)
@given(at=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(
    at: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    remote = layered(1, width=8)
    path = fill(tmp_path_factory.mktemp("part"), layer(remote), remote)
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] ^= 1 << bit
    path.write_bytes(raw)
    try:
        flaws = list(PublishedPart.read(path).flaws())
    except CheckpointError:
        return
    assert len(flaws) == 1 and flaws[0].startswith("tensor model.layers.0.")


def journaled(path: Path) -> bytes:
    """Write a journal of three pieces, as a killed process leaves it."""
    journal = Journal.start(path, "what it is", 5)
    journal.add([(0, "a" * 64), (3, "b" * 64)])
    journal.add([(1, "c" * 64)])
    journal.close()
    return path.read_bytes().rstrip(b"\0")


WHOLE = {0: "a" * 64, 3: "b" * 64, 1: "c" * 64}


def test_a_journal_tells_what_was_noted(tmp_path: Path) -> None:
    journaled(tmp_path / "j")
    found = Journal.read(tmp_path / "j", "what it is", 5)
    assert found is not None and found.done == WHOLE


def test_a_journal_of_another_part_or_another_version_of_a_file_is_no_journal(
    tmp_path: Path, remote: Remote
) -> None:
    journaled(tmp_path / "j")
    assert Journal.read(tmp_path / "j", "what it was", 5) is None
    assert Journal.read(tmp_path / "none", "what it is", 5) is None
    layout = layer(remote)
    remote.add("odd.safetensors", [("model.layers.0.bytes", "U8", (5,))], etag="e2")
    files = remote.hub_files
    other = PartLayout.of(ORIGIN, layout.key, layout.tensors, files)
    assert other.name == layout.name and other.description != layout.description


def test_a_cut_or_garbled_journal_counts_up_to_its_last_good_line_and_is_gone_on_with(
    tmp_path: Path,
) -> None:
    raw = journaled(tmp_path / "whole")
    path = tmp_path / "j"
    line_bytes = 74
    first_bytes = len(raw) - 3 * line_bytes
    for size in range(len(raw) + 1):
        path.write_bytes(raw[:size] + b"#garbage")
        found = Journal.read(path, "what it is", 5)
        if size < first_bytes:
            assert found is None
            continue
        lines = (size - first_bytes) // line_bytes
        assert found is not None and found.done == dict(list(WHOLE.items())[:lines])
        found.open()
        found.add([(4, "d" * 64)])
        found.close()
        again = Journal.read(path, "what it is", 5)
        assert again is not None and again.done == found.done and 4 in again.done


def test_a_journal_line_for_a_piece_that_does_not_exist_counts_for_nothing(tmp_path: Path) -> None:
    journaled(tmp_path / "j")
    found = Journal.read(tmp_path / "j", "what it is", 3)
    assert found is not None and found.done == {0: "a" * 64}


def test_a_partial_of_another_size_is_begun_anew(remote: Remote, tmp_path: Path) -> None:
    layout = layer(remote)
    part = Part(tmp_path, layout)
    piece = next(iter(layout.pieces(0)))
    part.write(piece.offset_bytes, memoryview(remote.files[piece.file])[piece.start : piece.end])
    part.finish(piece.index, "0" * 64, 1)
    part.sync()
    part.close()
    assert Part(tmp_path, layout).here == {piece.index}
    (partial,) = tmp_path.glob("*.partial")
    os.truncate(partial, layout.size_bytes - 1)
    assert Part(tmp_path, layout).here == frozenset()
    fill(tmp_path, layout, remote)
    assert list(PublishedPart.read(part.path).flaws()) == []


def test_bytes_are_on_disk_before_the_journal_tells_of_them(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order of the calls that matter, seen from outside: data, sync of data, journal line."""
    calls: list[tuple[str, str]] = []

    def spied(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: int, *rest: Any) -> Any:
            calls.append((name, Path(f"/proc/self/fd/{fd}").readlink().suffix))
            return act(fd, *rest)

        return call

    layout = layer(remote)
    part = Part(tmp_path, layout)
    piece = next(iter(layout.pieces(0)))
    part.write(piece.offset_bytes, memoryview(b""))
    for name in ("pwrite", "fdatasync"):
        monkeypatch.setattr(os, name, spied(name, getattr(os, name)))
    part.write(piece.offset_bytes, memoryview(bytes(piece.end - piece.start)))
    part.finish(piece.index, "0" * 64, piece.end - piece.start)
    part.sync()
    part.close()
    assert calls == [("pwrite", ".partial"), ("fdatasync", ".partial"), ("pwrite", ".journal")]


def test_a_journal_that_is_ahead_of_its_bytes_is_believed_as_far_as_they_go(
    remote: Remote, tmp_path: Path
) -> None:
    """As in a copy of a cache that was being filled, or on a disk that lost what it had taken."""
    layout = layer(remote)
    part = Part(tmp_path, layout)
    for piece in list(layout.pieces(0))[:-1]:
        data = remote.files[piece.file][piece.start : piece.end]
        part.write(piece.offset_bytes, memoryview(data))
        part.finish(piece.index, hashlib.sha256(data).hexdigest(), len(data))
    part.sync()
    part.close()
    (partial,) = tmp_path.glob("*.partial")
    lost = next(iter(layout.pieces(0)))
    with partial.open("r+b") as file:
        file.seek(lost.offset_bytes)
        file.write(bytes(lost.end - lost.start))
    fill(tmp_path, layout, remote)
    assert list(PublishedPart.read(part.path).flaws()) == []


def test_what_the_disk_failed_to_take_is_not_noted_when_it_takes_it_the_second_time(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel drops the bytes of a failed write and calls the next fdatasync a success."""
    layout = layer(remote)
    part = Part(tmp_path, layout)
    piece = next(iter(layout.pieces(0)))
    part.write(piece.offset_bytes, memoryview(bytes(piece.end - piece.start)))
    part.finish(piece.index, "0" * 64, piece.end - piece.start)

    def fails(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken, pytest.raises(LoadFailed):
        broken.setattr(os, "fdatasync", fails)
        part.sync()
    part.sync()
    part.close()
    assert Part(tmp_path, layout).here == frozenset()
