"""What a pass through all stages costs, by how many rows it has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

# Rows of one pass: few sizes, so that each is known soon.
SIZES = (1, 2, 4, 8, 16)
_PLAIN_PASSES = 16
# A pass that took so many times the median was held up, by a stage that was lost perhaps.
_OUTLIER = 3.0
# What a row more may cost before it was measured, as a share of the stages' work for the first.
# Packed rows cost some hundredths; those of a model that cannot be packed cost as much each.
_PACKED_ROW = 0.25
_NEWEST = 0.3
# What was found dear once, perhaps in a bad moment, is tried again after some hundred passes.
_FADING = 0.99


class PassCosts:
    """Learn the costs of passes of one pipeline; all its requests share them.

    Args:
        max_rows: how many rows the workers pack.
        links_s: how much of a pass the links take, as far as is known by now.

    Attributes:
        plain_s: what one token costs without guesses: the mean of the newest; None: not known yet.
        num_live: requests that are guessed ahead at this moment.
    """

    def __init__(self, max_rows: int, links_s: Callable[[], float]) -> None:
        self.plain_s: float | None = None
        self.num_live = 0
        self._packs = max_rows > 1
        self._links_s = links_s
        self._plain_s: deque[float] = deque(maxlen=_PLAIN_PASSES)
        # By size: how much longer than a plain pass, in plain passes, and how many there were.
        self._surplus: dict[int, float] = {}
        self._times: dict[int, int] = dict.fromkeys(SIZES, 0)

    def plain(self, took_s: float) -> None:
        """Note a pass of one row beside which nothing else was done for the request."""
        self._plain_s.append(took_s)
        most_s = _OUTLIER * median(self._plain_s)
        # The mean, for many passes together are compared with it: on a busy machine they take
        # longer than so many times the median.
        self.plain_s = sum(min(one_s, most_s) for one_s in self._plain_s) / len(self._plain_s)
        for size in self._surplus:
            self._surplus[size] *= _FADING

    def packed(self, rows: int, took_s: float, *, was_first: bool) -> None:
        """Note a pass of several rows; only of the first one under way the time says much."""
        size = size_of(rows)
        is_trial = not self._times[size]
        self._times[size] += 1
        if self.plain_s is None or not was_first or is_trial:
            return
        surplus = min(max(0.0, took_s / self.plain_s - 1), float(rows))
        known = self._surplus.get(size, surplus)
        self._surplus[size] = known + _NEWEST * (surplus - known)

    def surplus(self, rows: int) -> float:
        """Return how much longer a pass of several rows takes than a plain one, in plain ones."""
        size = size_of(rows)
        if size in self._surplus:
            return self._surplus[size]
        smaller = max((known for known in self._surplus if known < size), default=1)
        if smaller == 1:
            return self._unknown(size)
        return self._surplus[smaller] * (size - 1) / (smaller - 1)

    def trial(self, rows: int) -> float:
        """Return how much longer it takes this once, in plain passes.

        Workers that pack rows compare the kernels for a number of rows when they first have so
        many, which takes as long as the rows one by one.
        """
        size = size_of(rows)
        if self._times[size] or size == 1 or not self._packs:
            return 0.0
        return size * self._work

    @property
    def _work(self) -> float:
        """The share of a plain pass that the stages work."""
        plain_s = self.plain_s
        return min(1.0, max(0.0, 1 - self._links_s() / plain_s)) if plain_s else 1.0

    def _unknown(self, size: int) -> float:
        return (_PACKED_ROW if self._packs else 1.0) * self._work * (size - 1)


def size_of(rows: int) -> int:
    """Return the size that rows are packed in."""
    return next(size for size in SIZES if size >= rows)
