"""A split of the model over slots, with fewer slots on a device where all of them are too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.placement.seat import Seat
from orchestrator.placement.seating import Problem, Seating
from orchestrator.placement.split import split

# A split for which nothing is fetched is kept while the best one is not faster than this:
# measured speeds differ from run to run, and no host shall fetch anew because of that.
_KEEP_FACTOR = 1.25

# One stage: its seat and its half-open range of layers.
Link = tuple[Seat, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Solution:
    """The stages in layer order.

    Attributes:
        crowded: indexes of the slots that were taken out so that others on their device fit.
        best_ms: the slowest stage's step of the best split, where another was kept because
            nothing has to be fetched for it; else None.
    """

    links: tuple[Link, ...]
    crowded: frozenset[int] = frozenset()
    best_ms: float | None = None

    @property
    def used(self) -> frozenset[int]:
        """The indexes of the slots that have a stage."""
        return frozenset(seat.index for seat, _ in self.links)

    @property
    def bottleneck_ms(self) -> float:
        """The step time of the slowest stage."""
        return max(seat.step_ms(*layers) for seat, layers in self.links)

    @property
    def download_bytes(self) -> int:
        """What all stages have to fetch."""
        return sum(seat.download.size_bytes(*layers) for seat, layers in self.links)


def solve(problem: Problem) -> Solution | None:
    """Return the best split, or None where the model does not fit."""
    for indexes in attempts(problem):
        best = _solved(problem, problem.seat(indexes))
        if best is None:
            continue
        # What a slot that is left out would have had of its device goes to the others.
        if _unused_shares(problem, indexes, best):
            best = _solved(problem, problem.seat(sorted(best.used))) or best
        crowded = frozenset(range(len(problem.slots))) - frozenset(indexes)
        return replace(_at_rest(problem, best), crowded=crowded)
    return None


def fits(problem: Problem) -> bool:
    """Return whether `solve` finds a split; much faster."""
    for indexes in attempts(problem):
        seating = problem.seat(indexes)
        if not seating.misfits and problem.reach(seating) == problem.costs.num_layers:
            return True
    return False


def attempts(problem: Problem) -> Iterator[list[int]]:
    """Yield the slots' indexes, then ever fewer where several share a device, down to one on each.

    The order does not depend on how much memory there is: more of it never makes a plan fail.
    """
    remaining = list(range(len(problem.slots)))
    yield list(remaining)
    free = [index for index in remaining if problem.slots[index].layers is None]
    while len(free) > max(1, problem.num_gaps):
        counts = Counter(problem.slots[index].shared_device for index in free)
        fullest = max(counts, key=lambda device: counts[device])
        if counts[fullest] < 2:
            return
        last = max(index for index in free if problem.slots[index].shared_device == fullest)
        free.remove(last)
        remaining.remove(last)
        yield list(remaining)


def _unused_shares(problem: Problem, indexes: list[int], solution: Solution) -> bool:
    used = solution.used
    devices = {problem.slots[index].shared_device for index in used}
    left_out = [index for index in indexes if index not in used]
    return any(problem.slots[index].shared_device in devices for index in left_out)


def _solved(problem: Problem, seating: Seating) -> Solution | None:
    if seating.misfits:
        return None
    stages = split(problem.track, seating.free)
    if stages is None:
        return None
    links = [(seating.free[stage.seat], (stage.start, stage.end)) for stage in stages]
    links += [(seat, seat.own) for seat in seating.fixed if seat.own]
    return Solution(tuple(sorted(links, key=lambda link: link[1])))


def _at_rest(problem: Problem, best: Solution) -> Solution:
    """Return the best split for which nothing is fetched, where it is nearly as good."""
    cached = any(slot.cached_groups or slot.cached_files for slot in problem.slots)
    if not cached or best.download_bytes == 0:
        return best
    resting = _solved(problem, problem.seat(sorted(best.used), fetch=False))
    if resting is None or len(resting.links) < len(best.links):
        return best
    if resting.bottleneck_ms > _KEEP_FACTOR * best.bottleneck_ms:
        return best
    return replace(resting, best_ms=best.bottleneck_ms)
