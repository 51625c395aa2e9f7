"""What has been computed of a model: trying many plans asks for the same again and again."""

from __future__ import annotations

from orchestrator.placement.download import Download
from orchestrator.placement.seat import Bounds, Seat
from orchestrator.placement.slot import Slot
from orchestrator.placement.stage_cost import StageCosts
from orchestrator.placement.track import Track
from worker.protocol.costs import ModelCosts

# Half-open ranges of layers, in layer order.
Gaps = tuple[tuple[int, int], ...]


class Known:
    """Costs, downloads and bounds of one model, each by what it depends on."""

    def __init__(self, costs: ModelCosts) -> None:
        self._costs = costs
        self._tracks: dict[Gaps, Track] = {}
        self._stage_costs: dict[str, StageCosts] = {}
        self._downloads: dict[tuple[frozenset[str], frozenset[str]], Download] = {}
        self._bounds: dict[tuple[object, ...], Bounds] = {}

    def track(self, gaps: Gaps) -> Track:
        """Return the track over the gaps."""
        if gaps not in self._tracks:
            self._tracks[gaps] = Track.over(gaps, self._costs.num_layers, self._costs.cuts)
        return self._tracks[gaps]

    def stage_costs(self, slot: Slot) -> StageCosts:
        """Return the costs at the slot's quantization."""
        if slot.quantization not in self._stage_costs:
            self._stage_costs[slot.quantization] = StageCosts(self._costs, slot.quantization)
        return self._stage_costs[slot.quantization]

    def download(self, slot: Slot) -> Download:
        """Return what is not at the slot."""
        here = slot.cached_groups, slot.cached_files
        if here not in self._downloads:
            self._downloads[here] = Download(self._costs, slot)
        return self._downloads[here]

    def bounds(self, seat: Seat, gaps: Gaps) -> Bounds:
        """Return which stages the seat may take."""
        slot = seat.slot
        key = (
            gaps,
            slot.quantization,
            slot.cached_groups,
            slot.cached_files,
            seat.memory_bytes,
            seat.disk_bytes,
        )
        if key not in self._bounds:
            self._bounds[key] = seat.bounds(self.track(gaps))
        return self._bounds[key]
