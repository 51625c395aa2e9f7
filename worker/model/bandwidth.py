"""Measure how fast this machine reads weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch

# a matrix of a usual size; many of them, so that no cache holds a share worth mention
_WIDTH = 4096
_MATRIX_BYTES = _WIDTH * _WIDTH * 2
_WANTED_BYTES = 256 << 20
_LEAST_MATRICES = 4
_ROUNDS = 6
_FILLING_S, _MEASURING_S = 0.15, 0.25


@dataclass(frozen=True, slots=True)
class ReadSpeed:
    """10^9 bytes a second of matrices in bfloat16; 0.0 where not even one has room.

    Attributes:
        linear_gbps: that one row is multiplied by as torch's linear layers do it.
        memory_gbps: the same, or what a product of matrix and vector reads, whichever is more:
            nothing in torch was found that reads memory faster.
    """

    linear_gbps: float
    memory_gbps: float


def measure_read_speed(device: str, free_bytes: int) -> ReadSpeed:
    """Measure how fast `device` reads weights.

    The best of a few rounds, as a decode step does it: one row times 256 MiB of matrices, fewer
    where filling them takes long or where less than four times that is free. Takes less than a
    second, unless the machine is very busy; threads are those that torch is set to.
    """
    weights = _matrices(device, min(_WANTED_BYTES, free_bytes // 4) // _MATRIX_BYTES)
    if not weights:
        return ReadSpeed(0.0, 0.0)
    row = torch.ones(_WIDTH, dtype=torch.bfloat16, device=device)
    linear = _best_gbps(weights, partial(torch.nn.functional.linear, row[None]))
    product = _best_gbps(weights, partial(torch.mv, vec=row))
    return ReadSpeed(linear, max(linear, product))


def _best_gbps(weights: list[torch.Tensor], read: Callable[[torch.Tensor], torch.Tensor]) -> float:
    best_s = float("inf")
    with torch.inference_mode():
        read(weights[0])
        began_s = perf_counter()
        for _ in range(_ROUNDS):
            best_s = min(best_s, _round_s(read, weights))
            if perf_counter() - began_s > _MEASURING_S:
                break
    return round(len(weights) * _MATRIX_BYTES / best_s / 1e9, 3)


def _matrices(device: str, count: int) -> list[torch.Tensor]:
    """Make matrices and write to them: pages that nobody wrote to are all the same one."""
    began_s = perf_counter()
    found: list[torch.Tensor] = []
    while len(found) < count:
        found.append(torch.full((_WIDTH, _WIDTH), 0.01, dtype=torch.bfloat16, device=device))
        if len(found) >= _LEAST_MATRICES and perf_counter() - began_s > _FILLING_S:
            break
    return found


def _round_s(read: Callable[[torch.Tensor], torch.Tensor], weights: list[torch.Tensor]) -> float:
    _wait(weights[0])
    began_s = perf_counter()
    for weight in weights:
        read(weight)
    _wait(weights[0])
    return perf_counter() - began_s


def _wait(tensor: torch.Tensor) -> None:
    """Let an accelerator finish what it was given."""
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
    elif tensor.device.type == "mps":
        torch.mps.synchronize()
