"""A slot with its share of what its machine has: which stages fit there, and how fast."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.placement.download import Download
from orchestrator.placement.slot import Slot
from orchestrator.placement.stage_cost import StageCosts
from orchestrator.placement.track import Track

_BYTES_PER_MS = 1e6  # of one GB/s
# What a decode step of a layer takes beside reading its weights, mostly the way through some thirty
# kernels: 0.43 ms of SmolLM2's 0.83 on a Xeon of 2.1 GHz (`tools.bench.decode`). Without it small
# layers would count for less than they are beside a large head. Not known of other devices.
LAYER_MS = 0.4


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which stages one seat may take.

    Attributes:
        ends: by start, the largest end below the last layer's; at most the start where none is.
        last_from: the first start above 0 of a stage that holds the last layer.
        whole: whether it may take the whole model.
    """

    ends: list[int]
    last_from: int
    whole: bool

    def ends_of(self, start: int, track: Track) -> list[int]:
        """List the ends of the stages that may begin at `start`."""
        stops = track.stops
        ends = [end for end in range(start + 1, self.ends[start] + 1) if stops[end]]
        if self.takes_last(start, track):
            ends.append(track.num_layers)
        return ends

    def takes_last(self, start: int, track: Track) -> bool:
        """Return whether a stage from `start` may hold the last layer."""
        if track.gap_ends[start] != track.num_layers:
            return False
        return start >= self.last_from if start else self.whole


@dataclass(frozen=True, slots=True)
class Seat:
    """A slot and what one stage there may use.

    Attributes:
        index: the slot's position in the file.
        memory_bytes: the most a stage may need.
        disk_bytes: the most it may fetch.
        gbps: 10^9 bytes of weights a second that it reads.
    """

    index: int
    slot: Slot
    costs: StageCosts
    download: Download
    memory_bytes: int
    disk_bytes: int
    gbps: float

    @property
    def own(self) -> tuple[int, int] | None:
        """The half-open range of layers that it must hold, or None."""
        return self.slot.layers

    def step_ms(self, start: int, end: int) -> float:
        """Return how long one decode step of layers start:end takes."""
        work_bytes = self.costs.work_bytes(start, end, self._layer_bytes)
        return work_bytes / (self.gbps * _BYTES_PER_MS)

    def alone_ms(self, start: int, end: int) -> float:
        """Return how long reading takes with the whole speed of the device, which must be known."""
        return self.costs.read_bytes(start, end) / (self.slot.read_gbps * _BYTES_PER_MS)

    def fill_ppm(self, start: int, end: int) -> int:
        """Return which part of its memory layers start:end need; whole numbers add up exactly."""
        return self.costs.need_bytes(start, end) * 1_000_000 // max(1, self.memory_bytes)

    def fits(self, start: int, end: int) -> bool:
        """Return whether memory and disk suffice for layers start:end."""
        return (
            self.costs.need_bytes(start, end) <= self.memory_bytes
            and self.download.size_bytes(start, end) <= self.disk_bytes
        )

    def bounds(self, track: Track) -> Bounds:
        """Return which stages memory and disk allow."""
        last, memory_bytes = track.num_layers, self.memory_bytes
        by_memory = self.costs.ends_by_memory(memory_bytes)
        ends = [min(pair) for pair in zip(track.gap_ends, by_memory, strict=True)]
        last_from = self.costs.start_by_memory(memory_bytes)
        whole = self.costs.need_bytes(0, last) <= memory_bytes
        if self.download.model_bytes > self.disk_bytes:
            by_disk = self.download.ends(self.disk_bytes)
            ends = [min(a, b) for a, b in zip(ends, by_disk, strict=True)]
            last_from = max(last_from, self.download.first_start(self.disk_bytes))
            whole = whole and self.download.size_bytes(0, last) <= self.disk_bytes
        return Bounds(ends, last_from, whole)

    def quicker(self, bounds: Bounds, step_ms: float) -> Bounds:
        """Return those of the stages that take at most `step_ms`."""
        rate = self.gbps * _BYTES_PER_MS
        work_bytes, layer_bytes = int(step_ms * rate) + 2, self._layer_bytes
        while work_bytes / rate > step_ms:
            work_bytes -= 1
        costs = self.costs
        ends = costs.ends_by_work(work_bytes, layer_bytes)
        return Bounds(
            ends=[
                one if one < other else other for one, other in zip(bounds.ends, ends, strict=True)
            ],
            last_from=max(bounds.last_from, costs.start_by_work(work_bytes, layer_bytes)),
            whole=bounds.whole and costs.work_bytes(0, costs.num_layers, layer_bytes) <= work_bytes,
        )

    @property
    def _layer_bytes(self) -> int:
        """What is read in the time that a layer takes besides; whole numbers add up exactly."""
        is_cpu = self.slot.device == "cpu"
        return int(LAYER_MS * (self.gbps * _BYTES_PER_MS)) if is_cpu else 0
