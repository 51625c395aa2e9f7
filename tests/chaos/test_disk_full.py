"""A disk that is full, or refuses otherwise: one sentence, and nothing that came is lost."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.remote import MemorySource, Remote, held, open_store, quiet_meter
from worker.failures import LoadFailed
from worker.weights.disk import refusals_in_words
from worker.weights.fetch import fetch_tensors
from worker.weights.hub_file import HubFile
from worker.weights.ranges import MIB, PIECE_BYTES
from worker.weights.retry import FetchLimits

DISK_BYTES = 24 * MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"this user cannot mount a file system: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def remote() -> Remote:
    """Make two tensors of three pieces each, 18 MiB together."""
    made = Remote()
    for name in ("first", "second"):
        made.add(f"{name}.safetensors", [(f"{name}.weight", "U8", (2 * PIECE_BYTES + MIB,))])
    return made


def fetch(source: MemorySource, remote: Remote, root: Path) -> None:
    fetch_tensors(
        source,
        open_store(root),
        list(remote.entries.values()),
        remote.hub_files,
        meter=quiet_meter(),
        emit=lambda _: None,
        limits=FetchLimits(connections=1),
    )


def refused(source: MemorySource, remote: Remote, root: Path) -> str:
    with pytest.raises(LoadFailed) as caught:
        fetch(source, remote, root)
    assert "\n" not in caught.value.text
    return caught.value.text


def fill(folder: Path, leave_bytes: int) -> Path:
    """Fill a file system but for so many bytes; return the file that does."""
    found = os.statvfs(folder)
    filler = folder / "filler"
    filler.write_bytes(bytes(found.f_bavail * found.f_frsize - leave_bytes))
    return filler


class FillingSource(MemorySource):
    """Fills the disk once it has given so much."""

    def __init__(self, remote: Remote, disk: Path, after_bytes: int, leave_bytes: int) -> None:
        super().__init__(remote.files, chunk_bytes=MIB)
        self.disk, self.after_bytes, self.leave_bytes = disk, after_bytes, leave_bytes
        self.filler: Path | None = None

    def stream(self, file: HubFile, start: int, end: int, stop: threading.Event) -> Iterator[bytes]:
        for chunk in super().stream(file, start, end, stop):
            if self.filler is None and self.given_bytes > self.after_bytes:
                self.filler = fill(self.disk, self.leave_bytes)
            yield chunk


def test_too_little_room_is_told_before_the_first_byte(disk: Path, remote: Remote) -> None:
    fill(disk, 10 * MIB)
    source = MemorySource(remote.files)
    text = refused(source, remote, disk / "cache")
    assert source.asked == []
    assert text.startswith("the weights to be fetched need 18.88 MB in ")
    assert re.search(r"but 10\.4\d MB are free; make room", text)
    assert "--cache-dir or HF_HOME" in text and "orchestrator cache rm" in text


@pytest.mark.parametrize(
    ("share", "leave_bytes"), [(0.5, MIB // 2), (0.9, MIB // 2), (0.99, MIB // 16)]
)
@pytest.mark.parametrize("reserves", [True, False], ids=["reserved", "not-reserved"])
def test_a_disk_that_fills_up_keeps_what_came(
    share: float,
    leave_bytes: int,
    reserves: bool,
    disk: Path,
    remote: Remote,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not reserves:

        def unsupported(*_args: int) -> None:
            raise OSError(errno.EOPNOTSUPP, "not here")

        monkeypatch.setattr(os, "posix_fallocate", unsupported)
    total_bytes = sum(map(len, remote.tensors.values()))
    source = FillingSource(remote, disk, int(share * total_bytes), leave_bytes)
    root = disk / "cache"
    if reserves and share >= 0.9:  # Its room was its own.
        fetch(source, remote, root)
    else:
        text = refused(source, remote, root)
        assert text.startswith(f"the disk was full while weights were written to {root}")
        assert text.endswith("; what was fetched is kept")
    assert source.filler is not None
    source.filler.unlink()
    second = MemorySource(remote.files)
    fetch(second, remote, root)
    assert held(open_store(root), list(remote.tensors)) == remote.tensors
    # At most the pieces that were being received are asked for again.
    assert source.given_bytes + second.given_bytes <= total_bytes + PIECE_BYTES


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk was full while weights were written to {folder} ("),
        (errno.EDQUOT, "the quota was full while weights were written to {folder} ("),
        (errno.EFBIG, "a file in {folder} would be larger than"),
        (errno.EROFS, "weights cannot be written to {folder} (Read-only file system)"),
        (errno.EACCES, "weights cannot be written to {folder} (Permission denied)"),
        (errno.EIO, "weights cannot be kept in {folder} (Input/output error)"),
    ],
)
def test_each_refusal_of_the_disk_has_its_sentence_and_advice(
    number: int, words: str, tmp_path: Path
) -> None:
    with pytest.raises(LoadFailed) as caught:
        with refusals_in_words(tmp_path):
            raise OSError(number, os.strerror(number))
    assert caught.value.text.startswith(words.format(folder=tmp_path))
    assert "--cache-dir" in caught.value.text and "\n" not in caught.value.text


def test_a_limit_on_file_sizes_is_told_and_what_came_is_kept(
    remote: Remote, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 * MIB, hard))
        text = refused(MemorySource(remote.files), remote, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "would be larger than this process or file system allows" in text
    assert "ulimit -f" in text
    fetch(MemorySource(remote.files), remote, tmp_path)
    assert held(open_store(tmp_path), list(remote.tensors)) == remote.tensors


def test_a_read_only_cache_is_used_and_refused_for_writing(disk: Path, remote: Remote) -> None:
    first = Remote(remote.files, remote.hub_files, {"first.weight": remote.entries["first.weight"]})
    fetch(MemorySource(remote.files), first, disk)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert held(open_store(disk), ["first.weight"]) == {
        "first.weight": remote.tensors["first.weight"]
    }
    text = refused(MemorySource(remote.files), remote, disk)
    assert text.startswith("weights cannot be written to ")
    assert "(Read-only file system)" in text and "--cache-dir" in text
