"""Tell whether files are the same as before, without reading them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

Stamp = tuple[str, int, int]


def stamp(path: Path) -> Stamp:
    """Return path, size and time of one file.

    Raises:
        OSError: it cannot be looked at.
    """
    found = path.stat()
    return (str(path), found.st_size, found.st_mtime_ns)


def source_stamps(folder: Path, *, within: bool) -> list[Stamp]:
    """Return those of the Python files in a folder, and in the folders `within` it, in order.

    Raises:
        OSError: one cannot be looked at.
    """
    return sorted(_stamps(str(folder), within))


def _stamps(folder: str, within: bool) -> Iterator[Stamp]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                found = entry.stat()
                yield (entry.path, found.st_size, found.st_mtime_ns)
            elif within and entry.name != "__pycache__" and entry.is_dir():
                yield from _stamps(entry.path, within)
