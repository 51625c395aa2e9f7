"""Give memory that the C allocator holds free back to the system."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """Give back what is held free: conversions leave hundreds of MiB behind. Only glibc can."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
