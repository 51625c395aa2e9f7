"""Unpack an archive of a bundle where it cannot do harm: known names, bounded sizes, no links."""

from __future__ import annotations

import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MOST_BYTES = 1024**3
MOST_FILES = 10_000
_COPY_BYTES = 1024 * 1024
# What the libraries raise for damage, a zip file with a password, an unknown compression.
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, RuntimeError, ValueError, LookupError),
)

# What a bundle consists of, below whatever folder the archive puts it in.
_MEMBER = re.compile(
    r"(?P<folder>(?:[^/\\\x00]+/)*)"
    r"(?P<name>[a-z]{1,32}(?:\.\d{1,18})?\.jsonl?|stderr/stage-\d{1,6}(?:\.\d{1,18})?\.log)"
)


class ArchiveError(Exception):
    """Why an archive cannot be read as a bundle; one sentence."""


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a bundle from a tar (of any compression) or zip file; return its folder.

    Of several bundles in one archive, the last by name is taken.

    Raises:
        ArchiveError: it is no such archive, is damaged, or holds no bundle or far too much.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                return _unpack(_zip_members(zipped), archive, folder)
        with tarfile.open(archive) as tar:
            return _unpack(_tar_members(tar), archive, folder)
    except OSError as error:
        raise ArchiveError(f"{archive} cannot be read: {error.strerror or error}") from None
    except _DAMAGED:
        raise ArchiveError(
            f"{archive} is no bundle, nor a whole archive of one (.tar.gz or .zip)"
        ) from None


def _unpack(members: Iterator[tuple[str, IO[bytes]]], archive: Path, folder: Path) -> Path:
    roots: dict[str, Path] = {}
    left_bytes = MOST_BYTES
    for count, (member, content) in enumerate(members):
        with content:
            match = _MEMBER.fullmatch(member.removeprefix("./"))
            if match is None or count >= MOST_FILES:
                continue
            # A folder of our own for each: no name of the archive's is ever a path here.
            root = roots.setdefault(match["folder"], folder / f"bundle-{len(roots)}")
            left_bytes -= _copy(content, root / match["name"], left_bytes)
        if left_bytes < 0:
            raise ArchiveError(f"{archive} unpacks to more than {MOST_BYTES >> 30} GiB")
    bundles = [name for name, root in sorted(roots.items()) if (root / "manifest.json").exists()]
    if not bundles:
        raise ArchiveError(f"{archive} holds no bundle: no manifest.json is in it")
    return roots[bundles[-1]]


def _copy(content: IO[bytes], path: Path, left_bytes: int) -> int:
    """Copy a member and return its size; stop once it is more than what is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size_bytes = 0
    with path.open("wb") as file:
        while size_bytes <= left_bytes and (piece := content.read(_COPY_BYTES)):
            file.write(piece)
            size_bytes += len(piece)
    return size_bytes


def _tar_members(tar: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    for member in tar:
        content = tar.extractfile(member) if member.isreg() else None
        if content is not None:
            yield member.name, content


def _zip_members(zipped: zipfile.ZipFile) -> Iterator[tuple[str, IO[bytes]]]:
    for member in zipped.infolist():
        if not member.is_dir():
            yield member.filename, zipped.open(member)
