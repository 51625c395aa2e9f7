"""Have the system read a stage's weights from the disk while Python still imports its libraries.

Only a hint: which tensors a stage needs is settled by `select`, and whether they fit by the memory
check, both later. What is read here lies in the page cache, which gives way to whatever needs room.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from worker.config import WorkerConfig
from worker.failures import LoadFailed
from worker.protocol.stage import StageSlice
from worker.weights.group import group_of, layer_of
from worker.weights.header import CheckpointError, TensorEntry
from worker.weights.index import CheckpointIndex
from worker.weights.repo import CONFIG_FILE

_MEMINFO = Path("/proc/meminfo")


def read_ahead(config: WorkerConfig, folder: Path) -> int:
    """Ask the system for the layers of `config` from the weight files in `folder`.

    Returns the bytes asked for; 0 where the layers cannot be told, the files are not there, they
    would take more than half of the memory that is available, or the system has no such call.
    """
    if not hasattr(os, "posix_fadvise"):
        return 0
    with suppress(OSError, ValueError, CheckpointError, LoadFailed):
        own = config.identity(_num_layers(folder)).slice
        index = CheckpointIndex.read(folder)
        entries = [index.entry(name) for name in index.names if _is_wanted(name, own)]
        if sum(entry.size_bytes for entry in entries) <= available_bytes() // 2:
            return sum(_ask(folder / file, own) for file, own in _by_file(entries).items())
    return 0


def available_bytes(meminfo: Path = _MEMINFO) -> int:
    """Return the memory that programs can have, page cache that can go included; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _num_layers(folder: Path) -> int:
    fields = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    levels = (fields, fields.get("text_config")) if isinstance(fields, dict) else ()
    for level in levels:
        for name in ("num_hidden_layers", "n_layer"):
            if isinstance(level, dict) and isinstance(count := level.get(name), int):
                return count
    raise ValueError(f"{folder / CONFIG_FILE} does not tell its layers where most models do")


def _is_wanted(name: str, own: StageSlice) -> bool:
    layer = layer_of(group_of(name))
    if layer is None:
        return own.is_first or own.is_last
    return own.shard_start <= layer < own.shard_end


def _by_file(entries: Iterable[TensorEntry]) -> dict[str, list[TensorEntry]]:
    files: dict[str, list[TensorEntry]] = defaultdict(list)
    for entry in entries:
        files[entry.file].append(entry)
    return files


def _ask(path: Path, entries: Iterable[TensorEntry]) -> int:
    """Ask for tensors of one file; the reading goes on when this returns."""
    asked_bytes = 0
    with path.open("rb") as file:
        for entry in sorted(entries, key=lambda entry: entry.offset_bytes):
            where = (entry.offset_bytes, entry.size_bytes)
            os.posix_fadvise(file.fileno(), *where, os.POSIX_FADV_WILLNEED)
            asked_bytes += entry.size_bytes
    return asked_bytes
