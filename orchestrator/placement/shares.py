"""Each slot's share of the memory and the disk of its machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.placement.download import Download
from orchestrator.placement.slot import Slot
from orchestrator.placement.stage_cost import StageCosts


@dataclass(frozen=True, slots=True)
class Claim:
    """A slot and what it takes for its own `layers=`; nothing where it has none."""

    slot: Slot
    costs: StageCosts
    download: Download

    @property
    def fixed_need_bytes(self) -> int:
        """Of the device."""
        return self.costs.need_bytes(*self.slot.layers) if self.slot.layers else 0

    @property
    def fixed_groups(self) -> dict[tuple[str, str], int]:
        """To be fetched, by cache and name, with their bytes."""
        return self._in_cache(self.download.sizes(*self.slot.layers) if self.slot.layers else {})

    @property
    def missing_groups(self) -> dict[tuple[str, str], int]:
        """All of the model that is not there, by cache and name, with their bytes."""
        return self._in_cache(self.download.missing)

    def _in_cache(self, groups: Mapping[str, int]) -> dict[tuple[str, str], int]:
        return {(self.slot.cache_path, name): size for name, size in groups.items()}


def device_shares(claims: Sequence[Claim]) -> list[int]:
    """Return what one stage of each slot may need of its device."""
    devices: dict[tuple[str, str], list[Claim]] = defaultdict(list)
    for item in claims:
        devices[item.slot.shared_device].append(item)
    left: dict[tuple[str, str], _Left] = {}
    for device, together in devices.items():
        others = len(together) - 1
        free_bytes = min(each.slot.free_bytes for each in together)
        free_bytes -= others * max(each.slot.resident_bytes for each in together)
        free_bytes -= sum(each.fixed_need_bytes for each in together)
        left[device] = _Left.of(free_bytes, together)
    return [
        left[item.slot.shared_device].share(item.slot, item.fixed_need_bytes) for item in claims
    ]


def disk_shares(claims: Sequence[Claim]) -> list[int]:
    """Return what one stage of each slot may fetch."""
    machines: dict[str, list[Claim]] = defaultdict(list)
    for item in claims:
        machines[item.slot.shared_machine].append(item)
    left: dict[str, _Left] = {}
    for machine, together in machines.items():
        disk_bytes = min(each.slot.disk_free_bytes for each in together)
        missing = {name: size for each in together for name, size in each.missing_groups.items()}
        if sum(missing.values()) <= disk_bytes:
            left[machine] = _Left(disk_bytes, 1)
        else:
            fixed = {name: n for each in together for name, n in each.fixed_groups.items()}
            left[machine] = _Left.of(disk_bytes - sum(fixed.values()), together)
    return [
        left[item.slot.shared_machine].share(item.slot, sum(item.fixed_groups.values()))
        for item in claims
    ]


@dataclass(frozen=True, slots=True)
class _Left:
    """What the slots with `layers=` leave of something, and how many others share it."""

    left_bytes: int
    sharing: int

    @staticmethod
    def of(left_bytes: int, together: Sequence[Claim]) -> _Left:
        return _Left(left_bytes, sum(each.slot.layers is None for each in together))

    def share(self, slot: Slot, fixed_bytes: int) -> int:
        """Return the share of one slot; `fixed_bytes` is what its own `layers=` take."""
        if slot.layers is None:
            return max(0, self.left_bytes // self.sharing)
        return max(0, self.left_bytes + fixed_bytes)
