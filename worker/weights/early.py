"""Read large weights into memory while Python still imports the libraries that will use them.

What is read is only offered: loading takes a tensor if it wants that one whole and as it lies in
its file, and reads every other as it always does. So nothing that is settled later (which tensors a
stage needs, whether they fit) depends on what was read here.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from worker.file_stamps import Stamp, stamp
from worker.huge_pages import new_block
from worker.weights.header import TensorEntry

# Read at a time, and so the most that anybody waits for who wants the reader to hold still.
_SHARE_BYTES = 4 << 20
_ALIGNED_BYTES = 128
_ZEROS = Path("/dev/zero")
# Memory is taken for as much as is needed, or little more.
_MOST_ROOM, _MOST_MORE_BYTES = 1.02, 1 << 20
_Key = tuple[Path, int, int]


class EarlyWeights:
    """Tensors that one thread reads, in order, and another takes; neither waits for the other.

    A tensor is taken as far as it was read: the bytes after that are the taker's to read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._may_read = threading.Event()
        self._may_read.set()
        self._wanted: dict[_Key, TensorEntry] = {}
        self._read: dict[_Key, tuple[mmap.mmap, int]] = {}
        self._stamps: dict[Path, Stamp] = {}
        self._room: mmap.mmap | None = None
        self._room_bytes = 0
        self._settled = False

    def make_room(self, size_bytes: int) -> None:
        """Have the system give memory for what is laid out and read later: it need not wait then.

        Zeroing new memory takes longer than reading small weights into it. Every byte is written,
        because pages may be small, and by the system, which leaves Python's lock to others.
        """
        if size_bytes == 0:
            return
        with suppress(MemoryError, OSError), _ZEROS.open("rb", buffering=0) as zeros:
            block = _block(size_bytes)
            with self._still():
                self._room = None if self._settled else block
            done_bytes = 0
            while done_bytes < size_bytes:
                self._may_read.wait()
                with self._lock:
                    if self._room is not block:
                        return
                    with memoryview(block)[done_bytes : done_bytes + _SHARE_BYTES] as share:
                        done_bytes += os.preadv(zeros.fileno(), [share], 0)
                    self._room_bytes = done_bytes

    def take_room(self, size_bytes: int) -> mmap.mmap | None:
        """Give away memory of at least that size; None where it is not there, or is far more."""
        with self._still():
            self._settled = True
            room, self._room, self._room_bytes = self._room, None, 0
            most_bytes = size_bytes * _MOST_ROOM + _MOST_MORE_BYTES
            fits = room is not None and size_bytes <= len(room) <= most_bytes
            return room if fits else None

    def read(self, files: Mapping[Path, Sequence[TensorEntry]]) -> None:
        """Read the tensors of some files, until all are read or taken; none once it is settled.

        What cannot be read is left to whoever wants it, who will say so; with memory that the
        system does not give, the reading ends.
        """
        with self._still():
            if self._settled:
                return
            for path, entries in files.items():
                with suppress(OSError):
                    self._stamps[path] = stamp(path)
                    self._wanted |= {_key(path, entry): entry for entry in entries}
        for path, entries in files.items():
            try:
                with path.open("rb", buffering=0) as file:
                    for entry in entries:
                        self._read_one(file.fileno(), _key(path, entry))
            except OSError:
                self._forget(path)
            except MemoryError:
                self.close()

    def take(self, path: Path, entry: TensorEntry) -> tuple[mmap.mmap, int] | None:
        """Give away a tensor: its memory and how many bytes of it are read, or None.

        It is nobody else's afterwards. A file that is not as it was gives nothing.
        """
        key = _key(path, entry)
        with self._still():
            self._settled = True
            self._wanted.pop(key, None)
            found = self._read.pop(key, None)
            if found is None:
                return None
            with suppress(OSError):
                if stamp(path) == self._stamps[path]:
                    return found
            return None

    def keep(self, names: Collection[str]) -> None:
        """Forget, and give back the memory of, every tensor but those; without any, all memory.

        From now on it is settled what is read: a reader who comes late would read what has been
        loaded by then.
        """
        if not names:
            self.close()
        with self._still():
            self._settled = True
            for key in [key for key, entry in self._wanted.items() if entry.name not in names]:
                del self._wanted[key]
                self._read.pop(key, None)

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold still, and tell the bytes of memory that are filled."""
        with self._still():
            yield self._room_bytes + sum(num_bytes for _, num_bytes in self._read.values())

    def close(self) -> None:
        """Forget all, and read no more."""
        with self._still():
            self._settled = True
            self._wanted.clear()
            self._read.clear()
            self._room, self._room_bytes = None, 0

    def _read_one(self, fd: int, key: _Key) -> None:
        _, offset_bytes, size_bytes = key
        done_bytes = 0
        while done_bytes < size_bytes:
            self._may_read.wait()  # A lock alone would be this thread's again at once.
            with self._lock:
                if key not in self._wanted:
                    return
                block, _ = self._read.get(key) or (_block(size_bytes), 0)
                with memoryview(block)[done_bytes : done_bytes + _SHARE_BYTES] as share:
                    count = os.preadv(fd, [share], offset_bytes + done_bytes)
                if count == 0:
                    raise OSError("the file ends inside a tensor")
                done_bytes += count
                self._read[key] = block, done_bytes

    def _forget(self, path: Path) -> None:
        with self._still():
            for key in [key for key in self._wanted if key[0] == path]:
                del self._wanted[key]
                self._read.pop(key, None)

    @contextmanager
    def _still(self) -> Iterator[None]:
        self._may_read.clear()
        try:
            with self._lock:
                yield
        finally:
            self._may_read.set()


def room_bytes(entry: TensorEntry) -> int:
    """Return what a small tensor takes where many lie side by side: whole cache lines."""
    return -(-entry.size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _key(path: Path, entry: TensorEntry) -> _Key:
    return path, entry.offset_bytes, entry.size_bytes


def _block(size_bytes: int) -> mmap.mmap:
    try:
        return new_block(size_bytes)
    except OSError as error:
        raise MemoryError(f"no {size_bytes} bytes: {error}") from error
