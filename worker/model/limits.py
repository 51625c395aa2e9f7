"""Find out how much memory a stage may take: on the device, in its cgroup, by the user's word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
# cgroup v1 says "no limit" with a number near 2^63
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The tightest bound on further memory.

    `limit` names it: `memory` (the machine's), `cgroup`, `device` (an accelerator's), or
    `--memory-limit` with its figures.
    """

    free_bytes: int
    limit: str


def free_memory(device: str, memory_limit_bytes: int | None = None) -> FreeMemory:
    """Return what is free for this process on `device` (`cpu`, `cuda[:n]`, `mps`).

    `memory_limit_bytes` bounds the process as a whole, what it holds already included.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        used_bytes = psutil.Process().memory_info().rss
        bounds = [FreeMemory(psutil.virtual_memory().available, "memory")]
        bounds += [FreeMemory(free, "cgroup") for free in cgroup_free_bytes()]
    elif kind == "cuda":
        used_bytes = torch.cuda.memory_reserved(device)
        bounds = [FreeMemory(torch.cuda.mem_get_info(device)[0], "device")]
    else:
        used_bytes = torch.mps.current_allocated_memory()
        bounds = [FreeMemory(torch.mps.recommended_max_memory() - used_bytes, "device")]
    if memory_limit_bytes is not None:
        name = f"--memory-limit of {memory_limit_bytes >> 20} MiB, {used_bytes >> 20} MiB in use"
        bounds.append(FreeMemory(memory_limit_bytes - used_bytes, name))
    tightest = min(bounds, key=lambda bound: bound.free_bytes)
    return FreeMemory(max(0, tightest.free_bytes), tightest.limit)


def cgroup_free_bytes(root: Path = _CGROUP_ROOT, membership: Path = _MEMBERSHIP) -> list[int]:
    """List what each limited cgroup around this process leaves, versions 1 and 2.

    File pages that the kernel would drop first (`inactive_file`) count as free: a model folder
    that was just downloaded must not be in the way of loading it.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    free: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files = ("memory.max", "memory.current", "inactive_file")
            start = root
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            start = root / "memory"
        else:
            continue
        for folder in _folders(start, path):
            limit, used = _number(folder / files[0]), _number(folder / files[1])
            if limit is not None and used is not None and limit < _NO_LIMIT_BYTES:
                free.append(limit - used + _statistic(folder / "memory.stat", files[2]))
    return free


def _folders(start: Path, path: str) -> Iterator[Path]:
    """The cgroup's folder and those around it; inside a container the path may not exist."""
    folder = start / path.strip("/")
    while folder != start:
        yield folder
        folder = folder.parent
    yield start


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        # not there, or the word `max`
        return None


def _statistic(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines)
    return next((int(words[1]) for words in found if len(words) == 2 and words[0] == name), 0)
