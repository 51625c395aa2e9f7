"""What a stage of any layers needs, at one quantization, in a constant number of steps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from worker.protocol.costs import ModelCosts, QuantizedCost, RoleCost


@dataclass(frozen=True, slots=True)
class StageNeed:
    """The parts of a stage's memory, in bytes, as a worker checks them before it loads."""

    weights_bytes: int
    kv_bytes: int
    scratch_bytes: int
    process_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum."""
        return self.weights_bytes + self.kv_bytes + self.scratch_bytes + self.process_bytes


class StageCosts:
    """Costs of the half-open ranges of one model's layers at one quantization."""

    def __init__(self, costs: ModelCosts, quantization: str) -> None:
        self.num_layers = costs.num_layers
        self._cost: QuantizedCost = costs.quantizations[quantization]
        self._weights = _sums(self._cost.layer_weights_bytes)
        self._kv = _sums(costs.layer_kv_bytes)
        self._held = [w + kv for w, kv in zip(self._weights, self._kv, strict=True)]
        self._read = _sums(self._cost.layer_read_bytes)
        self._works: dict[int, list[int]] = {}

    def need(self, start: int, end: int) -> StageNeed:
        """Return what layers start:end need.

        Scratch is what a forward needs, or what loading needs where that is more: the cache is
        not there yet while weights are read.
        """
        role = self._role(start, end)
        kv_bytes = self._kv[end] - self._kv[start]
        return StageNeed(
            weights_bytes=self._weights[end] - self._weights[start] + role.weights_bytes,
            kv_bytes=kv_bytes,
            scratch_bytes=max(role.running_bytes, role.loading_bytes - kv_bytes),
            process_bytes=role.process_bytes,
        )

    def need_bytes(self, start: int, end: int) -> int:
        """Return the sum of `need`."""
        role = self._role(start, end)
        weights_bytes = self._weights[end] - self._weights[start] + role.weights_bytes
        later_bytes = self._kv[end] - self._kv[start] + role.running_bytes
        return weights_bytes + max(later_bytes, role.loading_bytes) + role.process_bytes

    def read_bytes(self, start: int, end: int) -> int:
        """Return what one decode step reads of the weights of layers start:end."""
        return self._read[end] - self._read[start] + self._role(start, end).read_bytes

    def ends_by_memory(self, room_bytes: int) -> list[int]:
        """Return, by start, the largest end below the last whose stage needs at most so much."""
        ends = []
        for start in range(self.num_layers):
            role = self._cost.middle if start else self._cost.first
            left_bytes = room_bytes - role.weights_bytes - role.process_bytes
            running = bisect_right(self._held, self._held[start] + left_bytes - role.running_bytes)
            loaded_bytes = self._weights[start] + left_bytes - role.loading_bytes
            loading = bisect_right(self._weights, loaded_bytes)
            ends.append(min(running, loading, self.num_layers) - 1)
        return ends

    def work_bytes(self, start: int, end: int, layer_bytes: int) -> int:
        """Return what one decode step of layers start:end takes, in bytes that are read meanwhile.

        Args:
            start: first layer.
            end: the one after the last.
            layer_bytes: what is read in the time that a layer takes besides.
        """
        return self.read_bytes(start, end) + (end - start) * layer_bytes

    def ends_by_work(self, work_bytes: int, layer_bytes: int) -> list[int]:
        """Return, by start, the largest end below the last whose stage takes at most so much."""
        sums, last = self._work(layer_bytes), self.num_layers
        left_bytes = work_bytes - self._cost.middle.read_bytes
        # `last` as the upper bound of the search: an end of the last layer is not looked for.
        ends = [bisect_right(sums, begin + left_bytes, 0, last) - 1 for begin in sums[:last]]
        ends[0] = bisect_right(sums, work_bytes - self._cost.first.read_bytes, 0, last) - 1
        return ends

    def start_by_memory(self, room_bytes: int) -> int:
        """Return the first start above 0 of a last stage that needs at most `room_bytes`."""
        role, last = self._cost.last, self.num_layers
        left_bytes = room_bytes - role.weights_bytes - role.process_bytes
        running = bisect_left(self._held, self._held[last] - (left_bytes - role.running_bytes))
        loading = bisect_left(
            self._weights, self._weights[last] - (left_bytes - role.loading_bytes)
        )
        return max(running, loading, 1)

    def start_by_work(self, work_bytes: int, layer_bytes: int) -> int:
        """Return the first start above 0 of a last stage that takes at most `work_bytes`."""
        sums = self._work(layer_bytes)
        left_bytes = work_bytes - self._cost.last.read_bytes
        return max(bisect_left(sums, sums[self.num_layers] - left_bytes), 1)

    def _work(self, layer_bytes: int) -> list[int]:
        if layer_bytes not in self._works:
            sums = [read + index * layer_bytes for index, read in enumerate(self._read)]
            self._works[layer_bytes] = sums
        return self._works[layer_bytes]

    def _role(self, start: int, end: int) -> RoleCost:
        if start == 0:
            return self._cost.whole if end == self.num_layers else self._cost.first
        return self._cost.last if end == self.num_layers else self._cost.middle


def at_context(costs: ModelCosts, share: float) -> ModelCosts:
    """Return about what the model costs at `share` of the surveyed context.

    The cache and the temporaries of a forward are taken to be in proportion to it. Neither is,
    quite: a sliding window holds what it holds, and some temporaries do not depend on it.
    """

    def role(cost: RoleCost) -> RoleCost:
        return replace(cost, running_bytes=int(cost.running_bytes * share))

    return replace(
        costs,
        layer_kv_bytes=tuple(int(kv_bytes * share) for kv_bytes in costs.layer_kv_bytes),
        quantizations={
            name: replace(
                cost,
                first=role(cost.first),
                middle=role(cost.middle),
                last=role(cost.last),
                whole=role(cost.whole),
            )
            for name, cost in costs.quantizations.items()
        },
    )


def _sums(sizes: Sequence[int]) -> list[int]:
    return list(accumulate(sizes, initial=0))
