"""What is read early is what lies in the file, however far it came and whoever takes it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from worker.model import copies
from worker.model.copies import Copier
from worker.weights import early as module
from worker.weights.early import EarlyWeights
from worker.weights.header import CheckpointError, TensorEntry, read_header

NAMES = ("a", "b", "c")
_NO_HUGE_PAGES = 41  # PR_SET_THP_DISABLE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tensors = {name: torch.rand(2100, 3001).bfloat16() for name in NAMES}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def entries_of(path: Path) -> list[TensorEntry]:
    return [read_header(path)[name] for name in NAMES]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def written(path: Path, entry: TensorEntry) -> bytes:
    return path.read_bytes()[entry.offset_bytes :][: entry.size_bytes]


def start(early: EarlyWeights, path: Path) -> threading.Thread:
    thread = threading.Thread(target=early.read, args=({path: entries_of(path)},))
    thread.start()
    return thread


def held(early: EarlyWeights) -> int:
    with early.held() as num_bytes:
        return num_bytes


def test_what_was_read_is_taken_and_not_read_again(path: Path) -> None:
    early = EarlyWeights()
    early.read({path: entries_of(path)})
    entry = entries_of(path)[1]
    assert held(early) == 3 * entry.size_bytes
    found = early.take(path, entry)
    assert found is not None
    block, done_bytes = found
    assert (block[:], done_bytes) == (written(path, entry), entry.size_bytes)
    assert (held(early), early.take(path, entry)) == (2 * entry.size_bytes, None)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]], ids="".join)
def test_reader_and_taker_share_the_work_in_any_order(
    path: Path, order: tuple[str, ...], threads: int
) -> None:
    by_name = dict(zip(NAMES, entries_of(path), strict=True))
    for _ in range(5):
        early = EarlyWeights()
        reading = start(early, path)
        with Copier(threads, early) as copier:
            taken = {name: copier.tensor(path, by_name[name]) for name in order}
        reading.join(10)
        assert not reading.is_alive()
        for name, tensor in taken.items():
            assert tuple(tensor.shape) == by_name[name].shape
            assert bits(tensor) == written(path, by_name[name])
        assert held(early) == 0


def test_a_tensor_is_taken_as_far_as_it_was_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, entry = EarlyWeights(), entries_of(path)[0]
    came = threading.Event()
    read = os.preadv
    monkeypatch.setattr(module, "_SHARE_BYTES", 1 << 20)

    def one_share(fd: int, shares: list[memoryview], offset_bytes: int) -> int:
        count = read(fd, shares, offset_bytes)
        if offset_bytes > entry.offset_bytes:
            early._may_read.clear()  # holds the reader after two shares
            came.set()
        return count

    monkeypatch.setattr(module.os, "preadv", one_share)
    reading = start(early, path)
    assert came.wait(10)
    monkeypatch.setattr(module.os, "preadv", read)
    left: list[int] = []
    plain = copies._read

    def watched(path: Path, offset_bytes: int, target: memoryview) -> None:
        left.append(len(target))
        plain(path, offset_bytes, target)

    monkeypatch.setattr(copies, "_read", watched)
    with Copier(1, early) as copier:
        tensor = copier.tensor(path, entry)
    assert left == [entry.size_bytes - (2 << 20)]
    assert bits(tensor) == written(path, entry)
    reading.join(10)
    assert not reading.is_alive()
    assert held(early) == 2 * entry.size_bytes


def test_only_what_is_kept_holds_memory(path: Path) -> None:
    early = EarlyWeights()
    early.read({path: entries_of(path)})
    early.make_room(5000)
    early.keep({"b"})
    entry = entries_of(path)[1]
    assert held(early) == entry.size_bytes + 5000
    assert early.take(path, entries_of(path)[0]) is None
    early.keep(())
    assert (held(early), early.take(path, entry), early.take_room(5000)) == (0, None, None)


def test_a_closed_reader_reads_no_more(path: Path) -> None:
    early = EarlyWeights()
    early.close()
    early.read({path: entries_of(path)})
    early.make_room(5000)
    assert held(early) == 0


@pytest.mark.parametrize("how", ["keep", "take", "room"])
def test_a_reader_that_comes_after_loading_began_reads_nothing(path: Path, how: str) -> None:
    early, entries = EarlyWeights(), entries_of(path)
    if how == "keep":
        early.keep(NAMES)
    elif how == "take":
        early.take(path, entries[0])
    else:
        early.take_room(5000)
    early.read({path: entries})
    early.make_room(5000)
    assert held(early) == 0


def test_room_is_resident_even_on_small_pages() -> None:
    """In a process of its own, without huge pages."""
    code = (
        "import ctypes, psutil\n"
        "from worker.weights.early import EarlyWeights\n"
        f"assert ctypes.CDLL(None).prctl({_NO_HUGE_PAGES}, 1, 0, 0, 0) == 0\n"
        "early, process = EarlyWeights(), psutil.Process()\n"
        "before = process.memory_info().rss\n"
        "early.make_room(40 << 20)\n"
        "with early.held() as held: print(held, process.memory_info().rss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    held_bytes, grown_bytes = map(int, done.stdout.split())
    assert held_bytes == 40 << 20
    assert grown_bytes > 0.95 * held_bytes


def test_a_file_that_was_changed_meanwhile_is_read_again(path: Path) -> None:
    early, entry = EarlyWeights(), entries_of(path)[0]
    early.read({path: entries_of(path)})
    data = bytearray(path.read_bytes())
    data[entry.offset_bytes] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    with Copier(1, early) as copier:
        assert bits(copier.tensor(path, entry)) == written(path, entry)


def test_a_file_that_ends_too_soon_is_left_to_the_loader_to_tell(path: Path) -> None:
    early, entries = EarlyWeights(), entries_of(path)
    with path.open("rb+") as file:
        file.truncate(entries[1].offset_bytes + (5 << 20))
    early.read({path: entries})
    assert held(early) == 0
    with Copier(1, early) as copier, pytest.raises(CheckpointError, match="inside a tensor"):
        copier.tensor(path, entries[1])


def test_a_file_that_is_not_there_or_memory_that_is_not_given_reads_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, entries = EarlyWeights(), entries_of(path)
    early.read({path.with_name("none"): entries, path: entries[:1]})
    assert held(early) == entries[0].size_bytes

    def refuse(size_bytes: int) -> object:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(module, "new_block", refuse)
    for reader in (EarlyWeights(), early):
        reader.make_room(5000)
        reader.read({path: entries})
        assert (held(reader), reader.take(path, entries[2])) == (0, None)


def test_room_is_given_once_and_only_for_about_its_size() -> None:
    mib = 1 << 20
    for asked, fits in (
        (100 * mib, True),
        (98 * mib, True),
        (96 * mib, False),
        (100 * mib + 1, False),
    ):
        early = EarlyWeights()
        early.make_room(100 * mib)
        room = early.take_room(asked)
        assert (room is not None, early.take_room(asked)) == (fits, None)
    early.make_room(0)
    assert early.take_room(0) is None
