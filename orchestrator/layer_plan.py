"""Which slot holds which layers, where some slots ask for layers of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from worker.protocol.stage import StageSlice, split_layers


class PlanError(Exception):
    """Layers and hosts do not fit together; one sentence."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One slot as the layer plan sees it.

    Attributes:
        name: how messages call the slot, for example `hosts.txt:3`.
        layers: the half-open range it must hold, or None where the plan chooses.
    """

    name: str
    layers: tuple[int, int] | None = None


def plan_layers(wishes: Sequence[Wish], num_layers: int) -> dict[int, StageSlice]:
    """Give every layer to exactly one slot; return slot index -> slice, in layer order.

    Wished ranges are kept. The other slots share what lies between, in file order and as evenly
    as the gaps allow. Slots for which no layer is left are not in the result.

    Raises:
        PlanError: ranges overlap, leave the model, or leave layers that no slot can hold.
    """
    fixed = fixed_ranges(wishes, num_layers)
    free = [index for index, wish in enumerate(wishes) if wish.layers is None]
    gaps = gaps_to_fill(wishes, fixed, num_layers)
    shares = _shares([end - start for start, end in gaps], len(free))
    planned = dict(fixed)
    for (start, end), share in zip(gaps, shares, strict=True):
        for part in split_layers(end - start, share):
            planned[free.pop(0)] = StageSlice(
                start + part.shard_start, start + part.shard_end, num_layers
            )
    return dict(sorted(planned.items(), key=lambda item: item[1].shard_start))


def stages_of(count: int, slots: int) -> str:
    """Return how many of a line's stages a note is about; nothing where it has one alone."""
    return f"{count} of {slots} stages of " if slots > 1 else ""


def fixed_ranges(wishes: Sequence[Wish], num_layers: int) -> list[tuple[int, StageSlice]]:
    """List the wished ranges in layer order, each with the index of its slot.

    Raises:
        PlanError: ranges overlap, or leave the model.
    """
    fixed: list[tuple[int, StageSlice]] = []
    for index, wish in enumerate(wishes):
        if wish.layers is None:
            continue
        start, end = wish.layers
        if end > num_layers:
            raise PlanError(
                f"{wish.name}: layers={start}:{end} goes beyond the model, which has "
                f"{num_layers} layers; use ranges within 0:{num_layers}"
            )
        fixed.append((index, StageSlice(start, end, num_layers)))
    fixed.sort(key=lambda item: item[1].shard_start)
    for (first, a), (second, b) in pairwise(fixed):
        if b.shard_start < a.shard_end:
            raise PlanError(
                f"{wishes[second].name}: layers={b} overlaps layers={a} of "
                f"{wishes[first].name}; each layer belongs on exactly one stage"
            )
    return fixed


def gaps_to_fill(
    wishes: Sequence[Wish], fixed: Sequence[tuple[int, StageSlice]], num_layers: int
) -> list[tuple[int, int]]:
    """Return the half-open ranges that the slots without a wish must share, in layer order.

    Raises:
        PlanError: there are more of them than such slots.
    """
    gaps = _gaps([slice_ for _, slice_ in fixed], num_layers)
    free = sum(wish.layers is None for wish in wishes)
    if free < len(gaps):
        start, end = gaps[free]
        beside = next(i for i, s in fixed if s.shard_end == start or s.shard_start == end)
        raise PlanError(
            f"{wishes[beside].name}: beside layers={dict(fixed)[beside]}, layers {start}:{end} of "
            f"0:{num_layers} are on no stage; add a host without layers= or widen a range"
        )
    return gaps


def _gaps(fixed: Sequence[StageSlice], num_layers: int) -> list[tuple[int, int]]:
    """Return the ranges between the fixed ones."""
    bounds = [0, *(bound for s in fixed for bound in (s.shard_start, s.shard_end)), num_layers]
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return [(start, end) for start, end in pairs if start < end]


def _shares(gap_layers: Sequence[int], num_slots: int) -> list[int]:
    """Return how many slots each gap gets: at least one, then where a slot holds most layers."""
    shares = [1] * len(gap_layers)
    for _ in range(num_slots - len(shares)):
        fullest = max(range(len(shares)), key=lambda i: gap_layers[i] / shares[i], default=None)
        if fullest is None or shares[fullest] == gap_layers[fullest]:
            break
        shares[fullest] += 1
    return shares
