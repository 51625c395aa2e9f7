"""Read what tensors a checkpoint folder holds, from its index and SafeTensors headers alone."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_LFS_START = b"version https://git-lfs"
_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I8": 8, "U8": 8, "BOOL": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


class CheckpointError(Exception):
    """A checkpoint file is missing, broken or of a refused kind; one sentence names it."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: `size_bytes` from `offset_bytes` of `file`, counted from its start."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


class CheckpointIndex:
    """The tensors of one checkpoint folder.

    Names come from the index file; a shard's header is read when one of its tensors is first
    asked for, so shards that a stage does not need may be absent.
    """

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder = folder
        self._files = files
        self._headers: dict[str, dict[str, TensorEntry]] = {}

    @staticmethod
    def read(folder: Path) -> CheckpointIndex:
        """Read `model.safetensors`, or else `model.safetensors.index.json`, of `folder`.

        Where both are there transformers takes the single file, so a folder whose model was saved
        anew over old shards must not give the old weights here.

        Raises:
            CheckpointError: there are no SafeTensors weights, or the file is broken.
        """
        index_file = folder / "model.safetensors.index.json"
        single_file = folder / "model.safetensors"
        if single_file.is_file():
            header = read_header(single_file)
            index = CheckpointIndex(folder, dict.fromkeys(header, single_file.name))
            index._headers[single_file.name] = header
            return index
        if index_file.is_file():
            return CheckpointIndex(folder, _read_weight_map(index_file))
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
            raise CheckpointError(
                f"{folder} holds only pickle weights (.bin, .pt), which can run code when read; "
                "convert them to SafeTensors first"
            )
        raise CheckpointError(
            f"{folder} holds no weights: neither model.safetensors.index.json nor "
            "model.safetensors is there; check the path or fetch the model again"
        )

    @cached_property
    def names(self) -> frozenset[str]:
        """Every tensor name of the checkpoint."""
        return frozenset(self._files)

    def file_of(self, name: str) -> str:
        """Name the file that holds tensor `name`."""
        return self._files[name]

    def entry(self, name: str) -> TensorEntry:
        """Return where tensor `name` lies.

        Raises:
            CheckpointError: its file is missing or broken, or does not hold it.
        """
        file = self._files[name]
        if file not in self._headers:
            path = self.folder / file
            if not path.is_file():
                raise CheckpointError(
                    f"{path} is missing, but tensor {name} is needed from it; "
                    "fetch that file or the whole model again"
                )
            self._headers[file] = read_header(path)
        found = self._headers[file].get(name)
        if found is None:
            raise CheckpointError(
                f"{self.folder / file} does not hold tensor {name}, which the index places "
                "there; fetch the model again"
            )
        return found


def _read_weight_map(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        pairs = [(str(name), file) for name, file in weight_map.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not a SafeTensors index ({error}); fetch the model again"
        ) from error
    for name, file in pairs:
        if not isinstance(file, str) or file in ("", ".", "..") or set(file) & {"/", "\\", "\0"}:
            raise CheckpointError(
                f"{path} places tensor {name} in {file!r}, which is not a plain file name; "
                "fetch the model again"
            )
        if not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} places tensor {name} in {file}, which is not a SafeTensors file; "
                "convert the model to SafeTensors first"
            )
    return dict(pairs)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Read and check the header of one SafeTensors file; no weight is read.

    Raises:
        CheckpointError: naming the file and what is wrong with it.
    """
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        raise CheckpointError(f"{path} is empty (zero length); fetch it again")
    with path.open("rb") as file:
        start = file.read(len(_LFS_START))
        if start == _LFS_START:
            raise CheckpointError(
                f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in the "
                "folder or fetch the model again"
            )
        if size_bytes < _LENGTH_BYTES:
            raise CheckpointError(
                f"{path} is truncated: {size_bytes} bytes are too few for a SafeTensors header; "
                "fetch it again"
            )
        (length,) = struct.unpack("<Q", start[:_LENGTH_BYTES])
        if length > MAX_HEADER_BYTES:
            raise CheckpointError(
                f"{path} is not a SafeTensors file: its header would have {length} bytes, the "
                f"limit is {MAX_HEADER_BYTES}; fetch it again"
            )
        if _LENGTH_BYTES + length > size_bytes:
            raise CheckpointError(
                f"{path} is truncated: its header ends at byte {_LENGTH_BYTES + length}, the file "
                f"at {size_bytes}; fetch it again"
            )
        file.seek(_LENGTH_BYTES)
        raw = file.read(length)
    return parse_header(raw, path, size_bytes)


def parse_header(raw: bytes, path: Path, size_bytes: int) -> dict[str, TensorEntry]:
    """Parse header bytes `raw` of a SafeTensors file that is `size_bytes` long in all.

    Raises:
        CheckpointError: as `read_header`.
    """
    data_start = _LENGTH_BYTES + len(raw)
    try:
        header = json.loads(raw)
        entries = {
            name: _entry(name, path.name, fields, data_start)
            for name, fields in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} has a broken SafeTensors header ({error}); fetch it again"
        ) from error
    end = data_start
    for entry in sorted(entries.values(), key=lambda e: (e.offset_bytes, e.size_bytes)):
        if entry.offset_bytes != end:
            what = "overlaps the tensor before it" if entry.offset_bytes < end else "leaves a gap"
            raise CheckpointError(
                f"{path} has a broken SafeTensors header: tensor {entry.name} at byte "
                f"{entry.offset_bytes} {what} (expected {end}); fetch it again"
            )
        end += entry.size_bytes
    if end > size_bytes:
        raise CheckpointError(
            f"{path} is truncated: its tensors end at byte {end}, the file at {size_bytes}; "
            "fetch it again"
        )
    if end < size_bytes:
        raise CheckpointError(
            f"{path} has {size_bytes - end} trailing bytes after its last tensor; fetch it again"
        )
    return entries


def _entry(name: str, file: str, fields: Any, data_start: int) -> TensorEntry:
    begin, end = fields["data_offsets"]
    shape = tuple(fields["shape"])
    if not all(type(n) is int and n >= 0 for n in (begin, end, *shape)):
        raise ValueError(f"tensor {name} has a size or offset that is not a whole number")
    bits = math.prod(shape) * _BITS[fields["dtype"]]
    if end - begin != (bits + 7) // 8:
        raise ValueError(f"tensor {name} of shape {list(shape)} does not fit its byte range")
    return TensorEntry(name, file, fields["dtype"], shape, data_start + begin, end - begin)
