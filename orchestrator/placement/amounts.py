"""Sizes and times as people read them."""

from __future__ import annotations

import math

_MIB = 1 << 20


def size_words(size_bytes: int) -> str:
    """Return a size in MiB or GiB, rounded up: what is needed must not look smaller."""
    mib = math.ceil(size_bytes / _MIB)
    return f"{mib} MiB" if mib < 1024 else f"{math.ceil(size_bytes / _MIB / 10.24) / 100:.2f} GiB"


def room_words(size_bytes: int) -> str:
    """Return a size in MiB or GiB, rounded down: what is free must not look larger."""
    mib = size_bytes // _MIB
    return f"{mib} MiB" if mib < 1024 else f"{math.floor(size_bytes / _MIB / 10.24) / 100:.2f} GiB"


def step_words(step_ms: float) -> str:
    """Return a time in milliseconds with three digits."""
    return f"{step_ms:.0f}" if step_ms >= 100 else f"{step_ms:.3g}"
