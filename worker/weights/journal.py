"""Which pieces of an unfinished part are on disk, so that the next try goes on from there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from worker.weights.disk import reserve, write_all

SUFFIX = ".journal"
_LINE_BYTES = 8 + 1 + 64 + 1
_LINE = re.compile(rb"([0-9]{8}) ([0-9a-f]{64})\n")


class Journal:
    """A file of lines: what the part is, then number and SHA-256 of each piece that is on disk.

    A line is added only after the piece's bytes were brought to disk, so a line that is there is
    true. A cut or garbled line, and all after it, count for nothing.

    Attributes:
        done: SHA-256 in hex by number of piece.
    """

    def __init__(self, path: Path, end: int, done: dict[int, str], num_pieces: int) -> None:
        self.path = path
        self.done = done
        self._end = end
        self._size_bytes = end + (num_pieces - len(done)) * _LINE_BYTES
        self._fd: int | None = None

    @staticmethod
    def read(path: Path, description: str, num_pieces: int) -> Journal | None:
        """Read the journal of a part of that description; None where it is of another, or none.

        Raises:
            OSError: it is there but cannot be read.
        """
        first = description.encode() + b"\n"
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        if not raw.startswith(first):
            return None
        done: dict[int, str] = {}
        end = len(first)
        while (line := _LINE.fullmatch(raw, end, end + _LINE_BYTES)) is not None:
            index = int(line[1])
            if index >= num_pieces:
                break
            done[index] = line[2].decode()
            end = line.end()
        return Journal(path, end, done, num_pieces)

    @staticmethod
    def start(path: Path, description: str, num_pieces: int) -> Journal:
        """Make a new one, in place of any other.

        Raises:
            OSError: there is no room for it.
        """
        first = description.encode() + b"\n"
        journal = Journal(path, 0, {}, num_pieces)
        journal._size_bytes += len(first)
        journal.open(fresh=True)
        journal._append(first)
        return journal

    def open(self, *, fresh: bool = False) -> None:
        """Open it for `add`; what comes after the last good line is dropped.

        Room for all lines is reserved now: when the disk is full later, what had come by then can
        still be noted.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if fresh else 0)
        self._fd = os.open(self.path, flags, 0o644)
        os.ftruncate(self._fd, self._end)
        reserve(self._fd, self._size_bytes)

    def add(self, pieces: Iterable[tuple[int, str]]) -> None:
        """Note pieces whose bytes are on disk."""
        self.done.update(pieces := list(pieces))
        self._append(b"".join(b"%08d %s\n" % (index, sha.encode()) for index, sha in pieces))

    def close(self) -> None:
        """Close the file; it stays for the next try."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, data: bytes) -> None:
        assert self._fd is not None
        write_all(self._fd, data, self._end)
        self._end += len(data)


def description_in(path: Path) -> bytes:
    """Return the first line of a journal, empty where it has none."""
    try:
        first, newline, _ = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return b""
    return first if newline else b""
