"""One growing file with a bound: its beginning and its end are kept, the middle may go.

The beginning is `name.ext`; what follows goes to `name.OFFSET.ext`, where OFFSET is the byte of
the stream at which the file begins. The newest two of those are kept. So a reader sees from names
and sizes alone where something is missing, also after a kill.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class SegmentedLog:
    """Append bytes; every append reaches the operating system before it returns.

    Args:
        path: the file with the beginning.
        segment_bytes: a file that would grow past this is followed by the next.
    """

    def __init__(self, path: Path, segment_bytes: int) -> None:
        self._path = path
        self._segment_bytes = segment_bytes
        self._kept: list[tuple[Path, int]] = []  # The files after the first, with their sizes.
        self._fd = _open(path)
        self._size_bytes = 0
        self._total_bytes = 0
        self.dropped_bytes = 0

    def append(self, data: bytes) -> None:
        """Write `data` whole into one file.

        Raises:
            OSError: the disk is full, gone or not writable.
        """
        if self._size_bytes and self._size_bytes + len(data) > self._segment_bytes:
            self._next_segment()
        written = self._write(data)
        while written < len(data):  # A disk that is nearly full takes a part.
            written += self._write(data[written:])

    def _write(self, data: bytes) -> int:
        written = os.write(self._fd, data)
        self._size_bytes += written
        self._total_bytes += written
        return written

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _next_segment(self) -> None:
        path = self._path.with_suffix(f".{self._total_bytes}{self._path.suffix}")
        fd = _open(path)
        os.close(self._fd)
        self._fd = fd
        if self._kept:
            self._kept[-1] = (self._kept[-1][0], self._size_bytes)
        self._kept.append((path, 0))
        self._size_bytes = 0
        if len(self._kept) > 2:
            oldest, size_bytes = self._kept.pop(0)
            self.dropped_bytes += size_bytes
            oldest.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a stream; `gap_bytes` are missing just before it."""

    path: Path
    gap_bytes: int


def segments_of(path: Path) -> Iterator[Segment]:
    """Yield the files of the stream that begins with `path`, in order; never raises."""
    found = {0: path}
    try:
        for other in path.parent.iterdir():
            middle = other.name[len(path.stem) : -len(path.suffix)]
            if other.name == f"{path.stem}{middle}{path.suffix}" and middle[1:].isdecimal():
                found[int(middle[1:][:18])] = other
    except OSError:
        pass  # No such folder: the first file is reported as missing by whoever opens it.
    end_bytes = 0
    for offset_bytes, file in sorted(found.items()):
        yield Segment(file, max(0, offset_bytes - end_bytes))
        try:
            end_bytes = offset_bytes + file.stat().st_size
        except OSError:
            end_bytes = offset_bytes


def is_plain(path: Path) -> bool:
    """Tell whether it is a file of its own: no link to another, no pipe or device to wait at."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_EXCL
    return os.open(path, flags, 0o600)
