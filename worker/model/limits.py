"""Find out how much memory a stage may take: on the device, in its cgroup, by the user's word."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from worker.cgroup import cgroup_free_bytes


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The tightest bound on further memory.

    `limit` names it: `memory` (the machine's), `cgroup`, `device` (an accelerator's), or
    `--memory-limit` with its figures.
    """

    free_bytes: int
    limit: str


def free_memory(
    device: str, memory_limit_bytes: int | None = None, *, held_bytes: int = 0
) -> FreeMemory:
    """Return what is free for this process on `device` (`cpu`, `cuda[:n]`, `mps`).

    `memory_limit_bytes` bounds the process as a whole, what it holds already included. On a CPU,
    `held_bytes` of that count as free: they are a part of what is asked for.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        used_bytes = max(0, psutil.Process().memory_info().rss - held_bytes)
        bounds = [FreeMemory(psutil.virtual_memory().available + held_bytes, "memory")]
        bounds += [FreeMemory(free + held_bytes, "cgroup") for free in cgroup_free_bytes()]
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
