"""Read and check the header of a SafeTensors file: the one place."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

MAX_HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8
_LFS_START = b"version https://git-lfs"
# what is to be read first: enough to tell a header from a pointer file
START_BYTES = len(_LFS_START)
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


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Read and check the header of one SafeTensors file; no weight is read.

    Raises:
        CheckpointError: naming the file and what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            size_bytes = path.stat().st_size
            length = header_length(file.read(START_BYTES), path, size_bytes)
            file.seek(LENGTH_BYTES)
            raw = file.read(length)
    except OSError as error:  # removed, for one, since it was found
        raise CheckpointError(
            f"{path} cannot be read ({error.strerror}); check that file, or fetch the model again"
        ) from error
    return parse_header(raw, path, size_bytes)


def header_length(start: bytes, path: PurePath, size_bytes: int) -> int:
    """Return how long the header is that follows the first LENGTH_BYTES of a SafeTensors file.

    `start` are the first START_BYTES of the file, or all of a shorter one.

    Raises:
        CheckpointError: it is no SafeTensors file, or its header does not fit it.
    """
    if size_bytes == 0:
        raise CheckpointError(f"{path} is empty (zero length); fetch it again")
    if start.startswith(_LFS_START):
        raise CheckpointError(
            f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in the "
            "folder or fetch the model again"
        )
    if size_bytes < LENGTH_BYTES:
        raise CheckpointError(
            f"{path} is truncated: {size_bytes} bytes are too few for a SafeTensors header; "
            "fetch it again"
        )
    (length,) = struct.unpack("<Q", start[:LENGTH_BYTES])
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path} is not a SafeTensors file: its header would have {length} bytes, the "
            f"limit is {MAX_HEADER_BYTES}; fetch it again"
        )
    if LENGTH_BYTES + length > size_bytes:
        raise CheckpointError(
            f"{path} is truncated: its header ends at byte {LENGTH_BYTES + length}, the file "
            f"at {size_bytes}; fetch it again"
        )
    return int(length)


def parse_header(raw: bytes, path: PurePath, size_bytes: int) -> dict[str, TensorEntry]:
    """Parse header bytes `raw` of a SafeTensors file that is `size_bytes` long in all.

    `path` names it in messages; the file itself may be elsewhere.

    Raises:
        CheckpointError: as `read_header`.
    """
    data_start = LENGTH_BYTES + len(raw)
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
