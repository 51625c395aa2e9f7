"""What comes of planning: which slot holds which layers, and what that costs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.placement.slot import Slot

# A stage that leaves less than this part of its memory is called tight.
TIGHT_HEADROOM = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """One stage of the plan.

    Attributes:
        index: the slot's position in the file.
        layers: half-open range.
        scratch_bytes: temporaries of a forward, or of loading where those are more.
        process_bytes: libraries and tokenizer that are not resident yet.
        free_bytes: the most that the stage may need: its share of what is free.
        download_groups: groups of tensors that are not there yet, with their size in bytes.
        step_ms: how long one decode step reads weights; None where no speed is known.
    """

    index: int
    slot: Slot
    layers: tuple[int, int]
    weights_bytes: int
    kv_bytes: int
    scratch_bytes: int
    process_bytes: int
    free_bytes: int
    download_groups: Mapping[str, int]
    step_ms: float | None

    @property
    def need_bytes(self) -> int:
        """The sum of the parts."""
        return self.weights_bytes + self.kv_bytes + self.scratch_bytes + self.process_bytes

    @property
    def download_bytes(self) -> int:
        """What is to be fetched."""
        return sum(self.download_groups.values())

    @property
    def tight(self) -> bool:
        """Whether less than a tenth of the memory is left."""
        return self.free_bytes - self.need_bytes < TIGHT_HEADROOM * self.free_bytes

    def to_json(self, stage: int) -> dict[str, Any]:
        """Return the stage as it stands in `Placement.to_json`."""
        return {
            "stage": stage,
            "name": self.slot.name,
            "host": self.slot.host,
            "device": self.slot.device,
            "quantization": self.slot.quantization,
            "layers": list(self.layers),
            "weights_bytes": self.weights_bytes,
            "kv_bytes": self.kv_bytes,
            "scratch_bytes": self.scratch_bytes,
            "process_bytes": self.process_bytes,
            "need_bytes": self.need_bytes,
            "free_bytes": self.free_bytes,
            "download_bytes": self.download_bytes,
            "step_ms": self.step_ms,
            "tight": self.tight,
        }


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A slot without a stage, and why: a clause that completes "left out: …"."""

    name: str
    host: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The plan.

    Attributes:
        stages: in layer order.
        notes: sentences for the user: what is left out, what is tight or slow.
        bottleneck_ms: the step time of the slowest stage; None where no speed is known.
        tokens_per_s: an upper bound for one request: its token goes through all stages, each with
            its device to itself, and only the reading of weights is counted.
    """

    num_layers: int
    stages: tuple[PlacedStage, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    bottleneck_ms: float | None
    tokens_per_s: float | None

    @property
    def download_bytes(self) -> int:
        """What is to be fetched: what two stages with one cache share counts once."""
        sizes: dict[tuple[tuple[str, str], str], int] = {}
        for stage in self.stages:
            for group, size_bytes in stage.download_groups.items():
                sizes[stage.slot.shared_cache, group] = size_bytes
        return sum(sizes.values())

    def to_json(self) -> dict[str, Any]:
        """Return the plan as decoded JSON; names are stable and carry their units."""
        return {
            "num_layers": self.num_layers,
            "stages": [stage.to_json(index) for index, stage in enumerate(self.stages)],
            "left_out": [asdict(left) for left in self.left_out],
            "notes": list(self.notes),
            "bottleneck_ms": self.bottleneck_ms,
            "tokens_per_s": self.tokens_per_s,
            "download_bytes": self.download_bytes,
        }
