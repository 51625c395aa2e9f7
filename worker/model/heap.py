"""Give memory that Python and the C allocator hold free back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys


def return_free_memory() -> None:
    """Collect garbage and trim the heap: conversions leave hundreds of MiB behind."""
    gc.collect()
    trim_heap()


def trim_heap() -> None:
    """Give back what the C allocator holds free; a few milliseconds. Only glibc can."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
