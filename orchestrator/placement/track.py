"""The layers that are still to be given out, and how a chain of stages walks over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class Track:
    """Positions 0 … num_layers; a stage goes from one to a later one within the same gap.

    Attributes:
        start: where the first free stage begins; num_layers where nothing is to be given out.
        gap_ends: by layer, the end of the gap it lies in; the layer itself where it is not free.
        landings: by position, where a chain that has come there goes on: behind the ranges that
            are held already.
        stops: by position, whether a stage may end there.
        units: the shortest possible stages, in layer order; nearly always one layer each.
        num_free: how many layers are to be given out.
        free_before: by position, how many of them lie before it.
    """

    num_layers: int
    start: int
    gap_ends: tuple[int, ...]
    landings: tuple[int, ...]
    stops: tuple[bool, ...]
    units: tuple[tuple[int, int], ...]
    num_free: int
    free_before: tuple[int, ...]

    @staticmethod
    def over(
        gaps: Sequence[tuple[int, int]], num_layers: int, cuts: Sequence[int] | None = None
    ) -> Track:
        """Return the track over half-open gaps in layer order, not empty and not adjacent.

        `cuts` are the layers that a stage may start at besides layer 0; None is any.
        """
        gap_ends = list(range(num_layers))
        for start, end in gaps:
            gap_ends[start:end] = [end] * (end - start)
        landings = list(range(num_layers + 1))
        for position in reversed(range(num_layers)):
            if gap_ends[position] == position:
                landings[position] = landings[position + 1]
        bounds = set(range(num_layers)) if cuts is None else {0, *cuts}
        bounds.add(num_layers)
        inside = [sorted(bounds.intersection(range(start, end + 1))) for start, end in gaps]
        free = [int(end > layer) for layer, end in enumerate(gap_ends)]
        return Track(
            num_layers=num_layers,
            start=landings[0],
            gap_ends=tuple(gap_ends),
            landings=tuple(landings),
            stops=tuple(position in bounds for position in range(num_layers + 1)),
            units=tuple(unit for positions in inside for unit in pairwise(positions)),
            num_free=sum(free),
            free_before=tuple(accumulate(free, initial=0)),
        )
