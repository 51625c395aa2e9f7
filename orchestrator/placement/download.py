"""What one place still has to fetch for a stage of any layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from orchestrator.placement.slot import Slot
from worker.protocol.costs import ModelCosts


class Download:
    """What of a model is not at one slot, by range of layers.

    Attributes:
        missing: the groups of tensors that are not there, with their bytes.
    """

    def __init__(self, costs: ModelCosts, slot: Slot) -> None:
        self._costs = costs
        self.missing = {
            name: group.size_bytes
            for name, group in costs.groups.items()
            if name not in slot.cached_groups
            and not (group.files and slot.cached_files.issuperset(group.files))
        }

    @property
    def model_bytes(self) -> int:
        """Everything of the model that is not there."""
        return sum(self.missing.values())

    def sizes(self, start: int, end: int) -> dict[str, int]:
        """Return the groups that layers start:end need and that are not there, with their bytes.

        A group of several layers counts once.
        """
        names = set().union(*self._costs.layer_groups[start:end])
        if start == 0:
            names.update(self._costs.first_groups)
        if end == self._costs.num_layers:
            names.update(self._costs.last_groups)
        return {name: self.missing[name] for name in sorted(names) if name in self.missing}

    def size_bytes(self, start: int, end: int) -> int:
        """Return what layers start:end have to fetch."""
        return sum(self.sizes(start, end).values())

    def ends(self, room_bytes: int) -> list[int]:
        """Return, for each start, the largest end below the last whose download fits."""
        last = self._costs.num_layers - 1
        held: Counter[str] = Counter()
        total_bytes, end = self._take(held, self._costs.first_groups), 0
        ends = []
        for start in range(self._costs.num_layers):
            while end < last:
                added_bytes = self._take(held, self._costs.layer_groups[end])
                if total_bytes + added_bytes > room_bytes:
                    self._give(held, self._costs.layer_groups[end])
                    break
                total_bytes += added_bytes
                end += 1
            ends.append(end if total_bytes <= room_bytes else start)
            if start == 0:
                total_bytes -= self._give(held, self._costs.first_groups)
            if start < end:
                total_bytes -= self._give(held, self._costs.layer_groups[start])
            else:
                end = start + 1
        return ends

    def first_start(self, room_bytes: int) -> int:
        """Return the first start above 0 of a last stage whose download fits."""
        held: Counter[str] = Counter()
        total_bytes = self._take(held, self._costs.last_groups)
        start = self._costs.num_layers
        while start > 1:
            total_bytes += self._take(held, self._costs.layer_groups[start - 1])
            if total_bytes > room_bytes:
                break
            start -= 1
        return start

    def _take(self, held: Counter[str], names: Iterable[str]) -> int:
        """Count the names in; return the bytes of those that were not there."""
        added_bytes = 0
        for name in names:
            held[name] += 1
            if held[name] == 1:
                added_bytes += self.missing.get(name, 0)
        return added_bytes

    def _give(self, held: Counter[str], names: Iterable[str]) -> int:
        """Count the names out; return the bytes of those that are gone with it."""
        freed_bytes = 0
        for name in names:
            held[name] -= 1
            if held[name] == 0:
                freed_bytes += self.missing.get(name, 0)
        return freed_bytes
