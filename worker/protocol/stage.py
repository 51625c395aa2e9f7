"""Which layers a stage holds, and the roles that follow from that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class Role(StrEnum):
    """What a stage can serve. A stage that holds the whole model is first and last."""

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class StageSlice:
    """A half-open range of layers `[shard_start, shard_end)` out of `num_layers`.

    Raises:
        ValueError: the range is empty or does not lie within the model.
    """

    shard_start: int
    shard_end: int
    num_layers: int

    def __post_init__(self) -> None:
        if not 0 <= self.shard_start < self.shard_end <= self.num_layers:
            raise ValueError(
                f"layers {self.shard_start}:{self.shard_end} are not a non-empty range within "
                f"0:{self.num_layers}"
            )

    @property
    def is_first(self) -> bool:
        """Whether the slice holds the embeddings."""
        return self.shard_start == 0

    @property
    def is_last(self) -> bool:
        """Whether the slice holds the final norm and the head."""
        return self.shard_end == self.num_layers

    @property
    def is_whole(self) -> bool:
        """Whether the slice is the whole model."""
        return self.is_first and self.is_last

    @property
    def roles(self) -> frozenset[Role]:
        """The roles of the slice, see `Role`."""
        roles = set()
        if self.is_first:
            roles.add(Role.FIRST)
        if self.is_last:
            roles.add(Role.LAST)
        return frozenset((roles | {Role.WHOLE}) if len(roles) == 2 else roles or {Role.MIDDLE})

    @property
    def num_own_layers(self) -> int:
        """How many layers the slice holds."""
        return self.shard_end - self.shard_start

    def __str__(self) -> str:
        return f"{self.shard_start}:{self.shard_end}"


def split_layers(num_layers: int, num_stages: int) -> list[StageSlice]:
    """Split `num_layers` evenly; sizes differ by at most one and cover every layer once.

    Raises:
        ValueError: there are more stages than layers, or no stage.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"{num_layers} layers cannot be split over {num_stages} stages: "
            f"give 1 to {num_layers} stages"
        )
    bounds = [i * num_layers // num_stages for i in range(num_stages + 1)]
    return [StageSlice(a, b, num_layers) for a, b in pairwise(bounds)]
