"""A stage before and after its weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedModel

from worker.model.architecture import Architecture
from worker.model.layout import HiddenLayout
from worker.model.load_options import LoadOptions
from worker.model.plan import StagePlan
from worker.model.slicing import SlicedParts
from worker.model.support import Support
from worker.protocol.stage import StageSlice
from worker.weights.index import CheckpointIndex


@dataclass(frozen=True)
class StageRequest:
    """What is known before weights are read: config, support, index and plan."""

    folder: Path
    options: LoadOptions
    support: Support
    index: CheckpointIndex
    plan: StagePlan


@dataclass(frozen=True)
class LoadedStage:
    """One stage in memory. Weights and slice do not change after this.

    `is_mapped` says whether weights may be parts of mapped files.
    """

    model: PreTrainedModel
    architecture: Architecture
    sliced: SlicedParts
    layout: HiddenLayout
    support: Support
    options: LoadOptions
    read_bytes: int
    weight_bytes: int
    is_mapped: bool = True
    notes: tuple[str, ...] = ()
    numerics: Mapping[str, str] = field(default_factory=dict)

    @property
    def stage(self) -> StageSlice:
        """The layers it holds."""
        return self.sliced.stage
