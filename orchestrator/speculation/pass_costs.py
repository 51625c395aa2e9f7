"""What a pass through all stages costs, by how many rows it has."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from statistics import median

from orchestrator.speculation.chances import Chances

# Rows of one pass: few sizes, so that each is known soon.
SIZES = (1, 2, 4, 8, 16)
# Workers pack rows in these, and compare the kernels of each when they first have so many.
_PACKS = (1, 4, 16)
_FEWEST_LARGE = _PACKS[-2] + 1
# Passes of a pack that take longer than later ones: compared, written down, compared again; and
# what they take besides the rows one by one, in single rows.
_TRIALS = 3
_TRIAL_ROWS = 3
_PLAIN_PASSES = 16
# A pass that took so many times the median was held up, by a stage that was lost perhaps.
_OUTLIER = 3.0
# What a row more may cost before it was measured, as a share of the stages' work for the first.
# Packed rows cost some hundredths; those of a model that cannot be packed cost as much each.
_PACKED_ROW = 0.1
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
        chances: of guesses, over all requests.
    """

    def __init__(self, max_rows: int, links_s: Callable[[], float]) -> None:
        self.plain_s: float | None = None
        self.num_live = 0
        self.chances = Chances()
        self._packs = max_rows > 1
        self._links_s = links_s
        self._plain_s: deque[float] = deque(maxlen=_PLAIN_PASSES)
        # By size: how much longer than a plain pass, in plain passes.
        self._surplus: dict[int, float] = {}
        # By pack: passes that were sent, and those that came back.
        self._sent: Counter[int] = Counter()
        self._landed: Counter[int] = Counter()

    def plain(self, took_s: float) -> None:
        """Note a pass of one row beside which nothing else was done for the request."""
        self._plain_s.append(took_s)
        most_s = _OUTLIER * median(self._plain_s)
        # The mean, for many passes together are compared with it: on a busy machine they take
        # longer than so many times the median.
        self.plain_s = sum(min(one_s, most_s) for one_s in self._plain_s) / len(self._plain_s)
        for size in self._surplus:
            self._surplus[size] *= _FADING

    def sent(self, rows: int) -> None:
        """Note that the workers get so many rows."""
        self._sent[_pack_of(rows)] += 1

    def packed(self, rows: int, took_s: float, *, was_first: bool) -> None:
        """Note a pass of several rows; only of the first one under way the time says much."""
        size, pack = size_of(rows), _pack_of(rows)
        self._landed[pack] += 1
        if self.plain_s is None or not was_first or self._landed[pack] <= _TRIALS:
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

        Workers that pack rows compare the kernels of a pack when they first have that many rows,
        which takes as long as those rows one by one (see `most_rows`) and some more.
        """
        if not self._packs or rows == 1 or self._sent[_pack_of(rows)]:
            return 0.0
        return (min(rows, _FEWEST_LARGE) + _TRIAL_ROWS) * self._work

    @property
    def most_rows(self) -> int:
        """Rows that a pass may have: the first ones that are compared are as few as will do."""
        return SIZES[-1] if not self._packs or self._sent[_PACKS[-1]] else _FEWEST_LARGE

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


def _pack_of(rows: int) -> int:
    return next(pack for pack in _PACKS if pack >= rows)
