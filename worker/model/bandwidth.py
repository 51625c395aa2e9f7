"""Measure how fast this machine reads weights."""

from __future__ import annotations

from time import perf_counter

import torch

# a matrix of a usual size; many of them, so that no cache holds a share worth mention
_WIDTH = 4096
_MATRIX_BYTES = _WIDTH * _WIDTH * 2
_WANTED_BYTES = 256 << 20
_LEAST_MATRICES = 4
_ROUNDS = 6
_FILLING_S, _MEASURING_S = 0.15, 0.25


def measure_read_gbps(device: str, free_bytes: int) -> float:
    """Return 10^9 bytes of bfloat16 weights a second that one row is multiplied by on `device`.

    The best of a few rounds, as a decode step does it: one row times 256 MiB of matrices, fewer
    where filling them takes long or where less than four times that is free. Takes less than half
    a second, unless the machine is very busy; threads are those that torch is set to. 0.0 where
    not even one matrix has room.
    """
    weights = _matrices(device, min(_WANTED_BYTES, free_bytes // 4) // _MATRIX_BYTES)
    if not weights:
        return 0.0
    row = torch.ones(1, _WIDTH, dtype=torch.bfloat16, device=device)
    best_s = float("inf")
    with torch.inference_mode():
        torch.nn.functional.linear(row, weights[0])
        began_s = perf_counter()
        for _ in range(_ROUNDS):
            best_s = min(best_s, _round_s(row, weights))
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


def _round_s(row: torch.Tensor, weights: list[torch.Tensor]) -> float:
    _wait(row)
    began_s = perf_counter()
    for weight in weights:
        torch.nn.functional.linear(row, weight)
    _wait(row)
    return perf_counter() - began_s


def _wait(tensor: torch.Tensor) -> None:
    """Let an accelerator finish what it was given."""
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
    elif tensor.device.type == "mps":
        torch.mps.synchronize()
