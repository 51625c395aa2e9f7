"""Allocate tensors on huge pages."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from worker.huge_pages import LEAST_BYTES, new_block


def empty_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised contiguous tensor `shape` of `dtype` in private memory."""
    size_bytes = dtype.itemsize
    for length in shape:
        size_bytes *= length
    if sys.platform == "win32" or size_bytes < LEAST_BYTES:
        return torch.empty(tuple(shape), dtype=dtype)
    # owned by the tensor: unmapped, and so given back, as soon as the tensor is gone
    return torch.frombuffer(new_block(size_bytes), dtype=dtype).reshape(tuple(shape))
