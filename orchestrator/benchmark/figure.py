"""A number with its spread over the rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that was measured once a round."""

    values: tuple[float, ...]

    @staticmethod
    def of(values: Iterable[float]) -> Figure:
        """Take the values of all rounds, at least one."""
        return Figure(tuple(values))

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.values)

    def words(self, digits: int = 1) -> str:
        """Return `12.3 (11.9-12.8)`; of one value that alone."""
        middle = f"{self.median:.{digits}f}"
        if len(self.values) == 1:
            return middle
        return f"{middle} ({min(self.values):.{digits}f}-{max(self.values):.{digits}f})"

    def to_json(self) -> dict[str, Any]:
        """Return the median, the ends of the spread and every value."""
        return {
            "median": round(self.median, 4),
            "low": round(min(self.values), 4),
            "high": round(max(self.values), 4),
            "values": [round(value, 4) for value in self.values],
        }
