"""Have a stage's weights read from the disk while Python still imports its libraries.

Only a guess: which tensors a stage needs is settled by `select`, and whether they fit by the memory
check, both later. What the system reads lies in the page cache, which gives way to whatever needs
room; what `EarlyWeights` reads is counted by that check, and only for stages that keep it so.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from worker.cgroup import cgroup_free_bytes
from worker.config import WorkerConfig
from worker.failures import LoadFailed
from worker.huge_pages import LEAST_BYTES
from worker.protocol.stage import StageSlice
from worker.weights.early import EarlyWeights, room_bytes
from worker.weights.group import group_of, layer_of
from worker.weights.header import CheckpointError, TensorEntry
from worker.weights.index import CheckpointIndex
from worker.weights.repo import CONFIG_FILE

_MEMINFO = Path("/proc/meminfo")
# What is there where torch may find a GPU that `--device auto` takes: NVIDIA's, AMD's, Windows'.
_ACCELERATORS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")


def read_ahead(config: WorkerConfig, folder: Path, early: EarlyWeights) -> int:
    """Ask the system for the layers of `config` from the weight files in `folder`.

    Those that are sure to be kept as they lie in a file are read into `early` then.

    Returns the bytes asked for; 0 where the layers cannot be told, the files are not there, they
    would take more than half of the memory that is available, or the system has no such call.
    """
    if not hasattr(os, "posix_fadvise"):
        return 0
    with suppress(OSError, ValueError, CheckpointError, LoadFailed):
        fields = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
        own = config.identity(_num_layers(fields, folder)).slice
        index = CheckpointIndex.read(folder)
        wanted = (index.entry(name) for name in index.names if _is_wanted(name, own))
        entries = sorted(wanted, key=lambda entry: (entry.file, entry.offset_bytes))
        size_bytes = sum(entry.size_bytes for entry in entries)
        if size_bytes > available_bytes() // 2:
            return 0
        asked_bytes = sum(_ask(folder / file, own) for file, own in _by_file(entries).items())
        if _keeps_them(config, fields) and size_bytes <= _room_bytes(config) // 2:
            large = _by_file(entry for entry in entries if _is_kept_large(entry, own))
            early.make_room(sum(map(room_bytes, _small(index, entries))))
            early.read({index.place(own[0]): own for own in large.values()})
        return asked_bytes
    return 0


def available_bytes(meminfo: Path = _MEMINFO) -> int:
    """Return the memory that programs can have, page cache that can go included; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _keeps_them(config: WorkerConfig, fields: object) -> bool:
    """Tell whether a stage's large weights will stay in memory as they are in the file.

    They do not on an accelerator, nor rounded, nor where they stay mapped. Of a model with parts
    beside the language model it is not known here which layers are whose.
    """
    if config.engine != "fast" or config.quantization != "bfloat16":
        return False
    if sys.platform != "linux" or config.device not in ("auto", "cpu"):
        return False
    if config.device == "auto" and any(map(os.path.exists, _ACCELERATORS)):
        return False
    return isinstance(fields, dict) and not fields.keys() & {"text_config", "quantization_config"}


def _room_bytes(config: WorkerConfig) -> int:
    """Return the least of what bounds the memory of this process, as far as that is quickly told.

    A process whose addresses are limited has none to spare: the libraries need them first.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return 0
    bounds = [available_bytes(), *cgroup_free_bytes()]
    if config.memory_limit_bytes is not None:
        bounds.append(config.memory_limit_bytes)
    return min(bounds)


def _small(index: CheckpointIndex, wanted: Sequence[TensorEntry]) -> list[TensorEntry]:
    """Return small tensors that are kept as they are, or hardly more: all stages have a norm."""
    names = {entry.name for entry in wanted}
    beside = [name for name in index.names - names if layer_of(group_of(name)) is None]
    norms = [entry for entry in map(index.entry, beside) if len(entry.shape) == 1]
    return [e for e in (*wanted, *norms) if _is_kept(e) and e.size_bytes < LEAST_BYTES]


def _is_kept(entry: TensorEntry) -> bool:
    return entry.dtype == "BF16" and ".experts." not in entry.name


def _is_kept_large(entry: TensorEntry, own: StageSlice) -> bool:
    """Tell a large tensor that is kept as it is: bfloat16, and none of many experts.

    The ends' own tensors are left alone where an end may not need them: it cannot be told from
    the names which of them that are.
    """
    is_in_layer = layer_of(group_of(entry.name)) is not None
    is_sure = is_in_layer or (own.is_first and own.is_last)
    return is_sure and _is_kept(entry) and entry.size_bytes >= LEAST_BYTES


def _num_layers(fields: object, folder: Path) -> int:
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
