"""The model does not fit on the hosts: what each could hold, and what would make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.layer_plan import PlanError
from orchestrator.placement.advice import remedies
from orchestrator.placement.amounts import room_words, size_words
from orchestrator.placement.seat import Seat
from orchestrator.placement.seating import Problem, Seating
from orchestrator.placement.solve import attempts
from worker.protocol.exits import ExitCode

# So many hosts are named in the sentence; `hosts` has all.
_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """One slot of a plan that fails.

    Attributes:
        layers: half-open range that it would hold when each takes as much as it can, or that it
            is given; None where it can hold none that are left.
        need_bytes: what those need; where it holds none, what the next layer would need.
        free_bytes: the most that a stage there may need.
        download_bytes, disk_bytes: the same for its disk.
    """

    name: str
    host: str
    layers: tuple[int, int] | None
    need_bytes: int
    free_bytes: int
    download_bytes: int
    disk_bytes: int

    @property
    def fits(self) -> bool:
        """Whether it has room for what it needs."""
        return self.need_bytes <= self.free_bytes and self.download_bytes <= self.disk_bytes

    @property
    def words(self) -> str:
        """The slot in a sentence."""
        room, need = room_words(self.free_bytes), size_words(self.need_bytes)
        layers = f"{self.layers[0]}:{self.layers[1]}" if self.layers else "its first layer"
        if self.need_bytes > self.free_bytes:
            return f"{self.host} has {room}, {layers} would need {need}"
        if self.download_bytes > self.disk_bytes:
            room, need = room_words(self.disk_bytes), size_words(self.download_bytes)
            return f"{self.host} has {room} of disk, {layers} would fetch {need}"
        return f"{self.host} has {room}, {layers} need {need}"


class DoesNotFit(PlanError):
    """The model does not fit on the hosts; one sentence.

    Attributes:
        shortfalls: the slots in file order.
        remedies: what was tried and would make it fit, as words that complete "it would fit with".
    """

    exit_code = ExitCode.OUT_OF_MEMORY

    def __init__(
        self, sentence: str, shortfalls: Sequence[Shortfall], remedies: Sequence[str]
    ) -> None:
        super().__init__(sentence)
        self.shortfalls = tuple(shortfalls)
        self.remedies = tuple(remedies)

    @staticmethod
    def of(problem: Problem, max_context: int) -> DoesNotFit:
        """Explain why a problem has no solution, and try what would help."""
        seating, reached = _best_attempt(problem)
        shortfalls = _shortfalls(problem, seating)
        named = "; ".join(shortfall.words for shortfall in shortfalls[:_NAMED])
        if len(shortfalls) > _NAMED:
            named += f"; and {len(shortfalls) - _NAMED} more"
        cures = remedies(problem, max_context)
        advice = (
            f"it would fit with {', or with '.join(cures)}"
            if cures
            else "no quantization, context or single host would make it fit: add hosts"
        )
        wished = [seat.slot for seat in seating.misfits if not seat.slot.is_even]
        if wished:
            what = f"the layers= of {wished[0].name} do not fit"
        elif seating.misfits:
            what = "the model does not fit in even shares"
        else:
            room = f"only the first {reached} of" if reached else "none of"
            what = f"the model does not fit: {room} its {problem.costs.num_layers} layers find room"
        return DoesNotFit(f"{what} ({named}); {advice}", shortfalls, cures)

    def to_json(self) -> dict[str, Any]:
        """Return the reason as decoded JSON; names are stable and carry their units."""
        return {
            "message": str(self),
            "hosts": [asdict(shortfall) for shortfall in self.shortfalls],
            "remedies": list(self.remedies),
        }


def _best_attempt(problem: Problem) -> tuple[Seating, int]:
    tried = [problem.seat(indexes) for indexes in attempts(problem)]
    reached = [(not seating.misfits, problem.reach(seating)) for seating in tried]
    best = max(range(len(tried)), key=lambda index: reached[index])
    return tried[best], reached[best][1]


def _shortfalls(problem: Problem, seating: Seating) -> list[Shortfall]:
    """Let each seat take as many layers as it can, in order."""
    track, position = problem.track, problem.track.start
    found = {seat.index: _shortfall(seat, seat.own) for seat in seating.fixed if seat.own}
    for seat in seating.free:
        if position == track.num_layers:
            # Only layers= of another line are in the way; nothing is left for this one.
            continue
        ends = seat.bounds(track).ends_of(position, track)
        if ends:
            found[seat.index] = _shortfall(seat, (position, ends[-1]))
            position = track.landings[ends[-1]]
        else:
            unit = next(unit for unit in track.units if unit[0] == position)
            found[seat.index] = replace(_shortfall(seat, unit), layers=None)
    return [found[index] for index in sorted(found)]


def _shortfall(seat: Seat, layers: tuple[int, int]) -> Shortfall:
    return Shortfall(
        name=seat.slot.name,
        host=seat.slot.host,
        layers=layers,
        need_bytes=seat.costs.need_bytes(*layers),
        free_bytes=seat.memory_bytes,
        download_bytes=seat.download.size_bytes(*layers),
        disk_bytes=seat.disk_bytes,
    )
