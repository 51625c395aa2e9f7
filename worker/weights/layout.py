"""The form of one part of the cache: an ordinary SafeTensors file that says where it came from."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from worker.weights.group import group_of
from worker.weights.header import LENGTH_BYTES, TensorEntry
from worker.weights.hub_file import HubFile
from worker.weights.ranges import PIECE_BYTES, Piece, cut

FORM = 1
META_KEY, CHECK_KEY = "stageline", "stageline_sha256"
# As long as a checksum: the header's size is known before anything is fetched.
_NO_HASH = "0" * 64
_ALIGN_BYTES = 64
_MOST_NAME_CHARS = 80


@dataclass(frozen=True, slots=True)
class Origin:
    """Where all tensors of one store came from; a part of another origin is never used."""

    endpoint: str
    repo_id: str
    commit: str


def part_key(name: str) -> str:
    """Return the name under which the group of a tensor is locked and its parts are kept."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", group_of(name))[:_MOST_NAME_CHARS]


@dataclass(frozen=True, slots=True)
class PartLayout:
    """What one part will hold, and where in it.

    Attributes:
        key: see `part_key`.
        tensors: where they lie in the source, in the order in which the part holds them.
        etags: of the source files.
    """

    origin: Origin
    key: str
    tensors: tuple[TensorEntry, ...]
    etags: Mapping[str, str | None]
    header_bytes: int

    @staticmethod
    def of(
        origin: Origin, key: str, entries: Sequence[TensorEntry], files: Mapping[str, HubFile]
    ) -> PartLayout:
        """Lay out `entries`, tensors of one key."""
        # Wide elements first, so that each tensor is aligned to its own.
        order = sorted(entries, key=lambda e: (-_item_bytes(e), e.file, e.offset_bytes, e.name))
        etags = {entry.file: files[entry.file].etag for entry in order}
        bare = PartLayout(origin, key, tuple(order), etags, 0)
        length = len(bare._header_json([_NO_HASH] * bare.num_pieces))
        padded = -(-(LENGTH_BYTES + length) // _ALIGN_BYTES) * _ALIGN_BYTES
        return PartLayout(origin, key, tuple(order), etags, padded)

    @property
    def name(self) -> str:
        """File name of the part, without its suffix."""
        names = "\n".join(sorted(entry.name for entry in self.tensors))
        return f"{self.key}-{hashlib.sha256(names.encode()).hexdigest()[:8]}"

    @property
    def num_pieces(self) -> int:
        """How many pieces its tensors have."""
        return sum(-(-entry.size_bytes // PIECE_BYTES) for entry in self.tensors)

    @property
    def size_bytes(self) -> int:
        """Size of the file, once it is whole."""
        return self.header_bytes + sum(entry.size_bytes for entry in self.tensors)

    @property
    def description(self) -> str:
        """One line that is the same only for the same tensors from the same files."""
        return json.dumps(
            {
                "form": FORM,
                "origin": [self.origin.endpoint, self.origin.repo_id, self.origin.commit],
                "piece_bytes": PIECE_BYTES,
                "header_bytes": self.header_bytes,
                "etags": self.etags,
                "tensors": {
                    e.name: [e.file, e.dtype, e.shape, e.offset_bytes] for e in self.tensors
                },
            },
            separators=(",", ":"),
        )

    def pieces(self, part: int) -> Iterator[Piece]:
        """Yield every piece, numbered from 0, as those of part number `part`."""
        index, at = 0, self.header_bytes
        for entry in self.tensors:
            for start, end in cut(entry.size_bytes):
                source = entry.offset_bytes
                yield Piece(entry.file, source + start, source + end, part, index, at + start)
                index += 1
            at += entry.size_bytes

    def header(self, hashes: Sequence[str]) -> bytes:
        """Return the first `header_bytes` of the file; `hashes` are the pieces' SHA-256 in hex."""
        raw = self._header_json(hashes).ljust(self.header_bytes - LENGTH_BYTES)
        assert LENGTH_BYTES + len(raw) == self.header_bytes
        return struct.pack("<Q", len(raw)) + raw

    def _header_json(self, hashes: Sequence[str]) -> bytes:
        left = iter(hashes)
        ends = accumulate(entry.size_bytes for entry in self.tensors)
        rows = {
            entry.name: {
                "dtype": entry.dtype,
                "shape": list(entry.shape),
                "data_offsets": [end - entry.size_bytes, end],
            }
            for entry, end in zip(self.tensors, ends, strict=True)
        }
        meta = {
            "form": FORM,
            "endpoint": self.origin.endpoint,
            "repo": self.origin.repo_id,
            "commit": self.origin.commit,
            "piece_bytes": PIECE_BYTES,
            "tensors": {
                entry.name: {
                    "file": entry.file,
                    "etag": self.etags[entry.file],
                    "sha256": [next(left) for _ in cut(entry.size_bytes)],
                }
                for entry in self.tensors
            },
        }
        metadata = {"format": "pt", META_KEY: json.dumps(meta, separators=(",", ":"))}
        metadata[CHECK_KEY] = header_check(metadata, rows)
        return json.dumps({"__metadata__": metadata, **rows}, separators=(",", ":")).encode()


def header_check(metadata: Mapping[str, str], rows: Mapping[str, object]) -> str:
    """Return the checksum, of all but itself, that makes any change of a part's header noticed."""
    checked = [{k: v for k, v in metadata.items() if k != CHECK_KEY}, rows]
    text = json.dumps(checked, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _item_bytes(entry: TensorEntry) -> int:
    digits = re.match(r"[A-Z]+(\d+)", entry.dtype)
    return int(digits.group(1)) if digits else 8
