"""Positions of one op worked on one after the other: right for every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from worker.backends.base import KVCache, Placement

A = TypeVar("A")
P = TypeVar("P")
R = TypeVar("R")
C = TypeVar("C", bound=KVCache)


def one_by_one(
    forward: Callable[[A, C | None, Placement], A],
    columns: Sequence[A],
    cache: C | None,
    placement: Placement,
) -> list[A]:
    """Return what `forward` gives for each column; a failure leaves the cache as it was."""
    with all_or_nothing(cache, placement):
        return [forward(column, cache, placement.step(i)) for i, column in enumerate(columns)]


def each_alone(run: Callable[[P], R], parts: Sequence[P]) -> list[R | Exception]:
    """Return what `run` gives for each part, or what it raises."""
    found: list[R | Exception] = []
    for part in parts:
        try:
            found.append(run(part))
        except Exception as error:  # noqa: BLE001 - it is this part's, and no other's
            found.append(error)
    return found


@contextmanager
def all_or_nothing(cache: KVCache | None, placement: Placement) -> Iterator[None]:
    """Bring the cache back to `placement.position` positions where the block fails."""
    before = None if cache is None else cache.snapshot(placement.position)
    try:
        yield
    except BaseException:
        if cache is not None:
            cache.restore(before)
        raise
