"""Keep the C allocator from holding memory that is free; only glibc can be told."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# mallopt(3): parameters, and the values that glibc starts with and may raise itself to
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_FIRST_MMAP_THRESHOLD_BYTES = 128 << 10
_LAST_MMAP_THRESHOLD_BYTES = 32 << 20


def trim_heap() -> None:
    """Give back what is held free: conversions leave hundreds of MiB behind."""
    trim = _libc("malloc_trim")
    if trim is not None:
        trim(0)


@contextmanager
def lean_heap() -> Iterator[None]:
    """Have every larger block given back when it is freed, as long as the block lasts.

    glibc raises the size from which it does so with each such block that is freed, up to 32 MiB,
    and temporaries then stay resident between those in use: loading 240 MiB of small experts
    peaked 44 MiB above what was loaded, and with a fixed size at what was loaded. Afterwards the
    size is where glibc would have raised it to, for ops that allocate the same again and again.
    """
    _set_threshold(_FIRST_MMAP_THRESHOLD_BYTES)
    try:
        yield
    finally:
        trim_heap()
        _set_threshold(_LAST_MMAP_THRESHOLD_BYTES)


def _set_threshold(size_bytes: int) -> None:
    mallopt = _libc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, size_bytes)
        # glibc's own rule: twice as much may be free at the end of the heap
        mallopt(_M_TRIM_THRESHOLD, 2 * size_bytes)


def _libc(name: str) -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), name, None)
