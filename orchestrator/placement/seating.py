"""Each slot's share of what its machine has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.layer_plan import PlanError, Wish, fixed_ranges, gaps_to_fill
from orchestrator.placement.known import Known
from orchestrator.placement.seat import Seat
from orchestrator.placement.shares import Claim, device_shares, disk_shares
from orchestrator.placement.slot import Slot
from orchestrator.placement.split import farthest
from orchestrator.placement.track import Track
from worker.protocol.costs import ModelCosts


@dataclass(frozen=True, slots=True)
class Seating:
    """Slots that may be used, each as a seat with its share.

    Attributes:
        fixed: the seats with `layers=`, in file order.
        free: the others, in file order.
    """

    fixed: tuple[Seat, ...]
    free: tuple[Seat, ...]

    @property
    def misfits(self) -> tuple[Seat, ...]:
        """The seats whose own `layers=` do not fit."""
        return tuple(seat for seat in self.fixed if seat.own and not seat.fits(*seat.own))


class Problem:
    """A model and the slots it is to be spread over.

    Attributes:
        track: the layers that the slots without `layers=` share.

    Raises:
        PlanError: `layers=` overlap, leave the model, or leave layers that no slot can hold; or
            a quantization cannot be loaded.
    """

    def __init__(
        self, slots: Sequence[Slot], costs: ModelCosts, known: Known | None = None
    ) -> None:
        self.slots = _at_speed_of_device(slots)
        self.costs = costs
        wishes = [Wish(slot.name, slot.layers) for slot in slots]
        fixed = fixed_ranges(wishes, costs.num_layers)
        self._gaps = tuple(gaps_to_fill(wishes, fixed, costs.num_layers))
        self._known = known or Known(costs)
        self.track = self._known.track(self._gaps)
        _check_cuts(slots, self.track)
        for slot in slots:
            _check_quantization(slot, costs)
        self._own = [
            Claim(slot, self._known.stage_costs(slot), self._known.download(slot))
            for slot in self.slots
        ]

    @property
    def num_gaps(self) -> int:
        """Into how many ranges the slots with `layers=` part the layers of the others."""
        return len(self._gaps)

    def with_slots(self, slots: Sequence[Slot]) -> Problem:
        """Return the same model over other slots; what is alike is not computed again.

        Raises:
            PlanError: see the class.
        """
        return Problem(slots, self.costs, self._known)

    def reach(self, seating: Seating) -> int:
        """Return up to which layer the free seats can hold the model, in order."""
        bounds = [self._known.bounds(seat, self._gaps) for seat in seating.free]
        return farthest(self.track, bounds)

    def seat(self, indexes: Sequence[int], *, fetch: bool = True) -> Seating:
        """Give each of the slots its share of memory, disk and speed.

        The slots of one device share what is free on it, less the libraries of the other workers.
        Slots with `layers=` take what those need, the others share the rest in equal parts; a
        `memory_limit_bytes` bounds each besides. They share its speed equally, too. Slots of one
        machine share the disk in the same way, unless all of the model has room there.

        Args:
            indexes: the slots that are used, in file order.
            fetch: whether anything may be fetched.
        """
        own = [self._own[index] for index in indexes]
        device_bytes = device_shares(own)
        disk_bytes = disk_shares(own) if fetch else [0] * len(own)
        known_gbps = [item.slot.read_gbps for item in own if item.slot.read_gbps > 0]
        sharing = Counter(item.slot.shared_device for item in own)
        seats = [
            Seat(
                index=index,
                slot=item.slot,
                costs=item.costs,
                download=item.download,
                memory_bytes=_limited(item.slot, room_bytes),
                disk_bytes=disk_room_bytes,
                # A speed that is not known is taken to be that of the slowest host.
                gbps=(item.slot.read_gbps or min(known_gbps, default=1.0))
                / sharing[item.slot.shared_device],
            )
            for index, item, room_bytes, disk_room_bytes in zip(
                indexes, own, device_bytes, disk_bytes, strict=True
            )
        ]
        return Seating(
            fixed=tuple(seat for seat in seats if seat.own is not None),
            free=tuple(seat for seat in seats if seat.own is None),
        )


def _at_speed_of_device(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Give all slots of one device its best measurement: they were measured at the same time."""
    fastest: dict[tuple[str, str], float] = {}
    for slot in slots:
        fastest[slot.shared_device] = max(slot.read_gbps, fastest.get(slot.shared_device, 0.0))
    return tuple(replace(slot, read_gbps=fastest[slot.shared_device]) for slot in slots)


def _limited(slot: Slot, share_bytes: int) -> int:
    if slot.memory_limit_bytes is None:
        return share_bytes
    return max(0, min(share_bytes, slot.memory_limit_bytes - slot.resident_bytes))


def _check_cuts(slots: Sequence[Slot], track: Track) -> None:
    for slot in slots:
        wrong = [bound for bound in slot.layers or () if not track.stops[bound]]
        if wrong:
            cuts = [str(position) for position, stop in enumerate(track.stops) if stop]
            raise PlanError(
                f"{slot.name}: layers= cuts the model at layer {wrong[0]}, where it cannot be "
                f"parted; cut it at one of {', '.join(cuts)}"
            )


def _check_quantization(slot: Slot, costs: ModelCosts) -> None:
    if slot.quantization not in costs.quantizations:
        reason = costs.unavailable.get(slot.quantization, "the survey did not find it")
        raise PlanError(
            f"{slot.name}: quantization={slot.quantization} cannot be used ({reason}); use one of "
            f"{', '.join(costs.quantizations)}"
        )
