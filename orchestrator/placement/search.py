"""Find by halving how much is enough, where more never hurts."""

from __future__ import annotations

from collections.abc import Callable

_MIB = 1 << 20


def least_bytes(enough: Callable[[int], bool], most_bytes: int) -> int | None:
    """Return the smallest whole MiB that are enough; None if `most_bytes` are not."""
    if not enough(most_bytes):
        return None
    low, high = 0, 1
    while high * _MIB < most_bytes and not enough(high * _MIB):
        low, high = high, 4 * high
    high = min(high, most_bytes // _MIB)
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle * _MIB):
            high = middle
        else:
            low = middle
    return high * _MIB


def most(count: int, possible: Callable[[int], bool]) -> int:
    """Return the largest number up to `count` that is possible; 0 if none is."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        if possible(middle):
            low = middle
        else:
            high = middle - 1
    return low
