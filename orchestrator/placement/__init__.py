"""Which host holds which layers, from what the hosts offer and what the model costs. No I/O."""

from orchestrator.placement.misfit import DoesNotFit
from orchestrator.placement.place import place
from orchestrator.placement.placement import LeftOut, PlacedStage, Placement
from orchestrator.placement.slot import Slot

__all__ = ["DoesNotFit", "LeftOut", "PlacedStage", "Placement", "Slot", "place"]
