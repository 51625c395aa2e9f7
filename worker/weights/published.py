"""Read what a finished part of the cache holds, and check it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.weights.header import (
    LENGTH_BYTES,
    START_BYTES,
    CheckpointError,
    TensorEntry,
    header_length,
    parse_header,
)
from worker.weights.layout import CHECK_KEY, FORM, META_KEY, Origin, header_check

SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Source:
    """Which file of the hub a tensor came from, and the SHA-256 of each of its pieces in hex."""

    file: str
    etag: str | None
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishedPart:
    """A finished part: its header is right, its weights are as long as it says."""

    path: Path
    origin: Origin
    entries: Mapping[str, TensorEntry]
    sources: Mapping[str, Source]
    piece_bytes: int
    size_bytes: int

    @staticmethod
    def read(path: Path) -> PublishedPart:
        """Read and check the header of a part; no weight is read.

        Raises:
            CheckpointError: it is cut, altered, or not of this form; one sentence names it.
            OSError: it cannot be read.
        """
        with path.open("rb") as file:
            size_bytes = path.stat().st_size
            length = header_length(file.read(START_BYTES), path, size_bytes)
            file.seek(LENGTH_BYTES)
            raw = file.read(length)
        entries = parse_header(raw, path, size_bytes)
        try:
            rows: dict[str, Any] = json.loads(raw)
            metadata = rows.pop("__metadata__")
            if metadata[CHECK_KEY] != header_check(metadata, rows):
                raise ValueError("its checksum differs")
            meta = json.loads(metadata[META_KEY])
            if meta["form"] != FORM:
                raise ValueError(f"its form is {meta['form']!r}, this version knows {FORM}")
            sources = {
                name: Source(row["file"], row["etag"], tuple(row["sha256"]))
                for name, row in meta["tensors"].items()
            }
            origin = Origin(meta["endpoint"], meta["repo"], meta["commit"])
            piece_bytes = int(meta["piece_bytes"])
            if sources.keys() != entries.keys():
                raise ValueError("it names other tensors than it holds")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"the header of {path} is not what was written ({error}); its tensors have to be "
                "fetched again"
            ) from error
        return PublishedPart(path, origin, entries, sources, piece_bytes, size_bytes)

    def flaws(self) -> Iterator[str]:
        """Read every weight and yield what differs from its checksum, one phrase each."""
        with self.path.open("rb") as file:
            for name, entry in self.entries.items():
                file.seek(entry.offset_bytes)
                left = entry.size_bytes
                for number, expected in enumerate(self.sources[name].hashes):
                    data = file.read(min(left, self.piece_bytes))
                    left -= len(data)
                    if hashlib.sha256(data).hexdigest() != expected:
                        at = entry.offset_bytes + number * self.piece_bytes
                        yield f"tensor {name} differs within {len(data)} bytes from byte {at}"
                if left:
                    yield f"tensor {name} has {left} bytes without a checksum"
