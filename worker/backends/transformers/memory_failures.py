"""Tell a lack of memory apart from every other failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from worker.backends.base import OutOfDeviceMemory

# The CPU allocator raises a plain RuntimeError.
_CPU_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"


@contextmanager
def memory_failures() -> Iterator[None]:
    """Raise OutOfDeviceMemory for whatever torch and Python raise when memory is short."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfDeviceMemory(_first_line(error)) from error
    except RuntimeError as error:
        if _CPU_ALLOCATOR not in str(error):
            raise
        raise OutOfDeviceMemory(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
