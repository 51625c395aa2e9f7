"""Keep the headers of the hub's weight files, so that they are asked for once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.weights.disk import publish_text, refusals_in_words
from worker.weights.header import TensorEntry
from worker.weights.hub_file import HubFile
from worker.weights.layout import Origin

_SUFFIX = ".json"
KeptHeader = tuple[HubFile, Mapping[str, TensorEntry]]


class HeaderCache:
    """One small file for the header of each weight file of a commit; any thread may use it."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self._folder = folder
        self._origin = origin
        self._read: dict[str, KeptHeader | None] = {}

    def get(self, file: str) -> KeptHeader | None:
        """Return the kept header; None where there is none that can be used."""
        if file not in self._read:
            self._read[file] = self._load(file)
        return self._read[file]

    def keep(self, file: HubFile, header: Mapping[str, TensorEntry]) -> None:
        """Write a header down.

        Raises:
            LoadFailed: the disk refuses; one sentence.
        """
        body = {
            "origin": self._named_origin(),
            "file": [file.name, file.size_bytes, file.etag],
            "tensors": [
                [e.name, e.dtype, list(e.shape), e.offset_bytes, e.size_bytes]
                for e in header.values()
            ],
        }
        text = json.dumps(body, separators=(",", ":"))
        with refusals_in_words(self._folder):
            publish_text(self._path(file.name), f"{_digest(text)}\n{text}\n")
        self._read[file.name] = (file, dict(header))

    def _load(self, file: str) -> KeptHeader | None:
        try:
            check, text, _ = self._path(file).read_text(encoding="utf-8").split("\n")
            if check != _digest(text):
                return None
            body: dict[str, Any] = json.loads(text)
            kept = HubFile(*body["file"])
            entries = {
                name: TensorEntry(name, file, dtype, tuple(shape), offset_bytes, size_bytes)
                for name, dtype, shape, offset_bytes, size_bytes in body["tensors"]
            }
            right = body["origin"] == self._named_origin() and kept.name == file
            return (kept, entries) if right else None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # As good as absent: the hub has it.

    def _named_origin(self) -> list[str]:
        return [self._origin.endpoint, self._origin.repo_id, self._origin.commit]

    def _path(self, file: str) -> Path:
        return self._folder / f"{file}{_SUFFIX}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
