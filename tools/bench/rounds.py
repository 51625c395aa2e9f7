"""Measure several ways of doing one thing in turn, so that a busy machine slows all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeVar

T = TypeVar("T")


def in_turn(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Call each way once a round; return what they gave, by name, in order.

    Odd rounds go backwards, so that no way always follows the same other one.
    """
    found: dict[str, list[T]] = {name: [] for name in ways}
    for i in range(rounds):
        for name in list(ways) if i % 2 == 0 else reversed(list(ways)):
            found[name].append(ways[name]())
    return found


def spread(values: list[float], digits: int = 2) -> str:
    """Format the median, and the lowest and highest in brackets where there are several."""
    middle = f"{median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"
