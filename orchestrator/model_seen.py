"""What a host told of the model, joined with what others told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.failures import PipelineMismatch
from worker.protocol.costs import ModelCosts
from worker.protocol.events import ModelSurveyed


@dataclass(frozen=True, slots=True)
class ModelSeen:
    """The model as a host sees it.

    Attributes:
        host: the host's label.
        model: what it told.
        costs: the costs in it, decoded.
    """

    host: str
    model: ModelSurveyed
    costs: ModelCosts

    def joined(self, other: ModelSeen, quantizations: Sequence[str]) -> ModelSeen:
        """Return this with the given quantizations as `other` counted them.

        Raises:
            PipelineMismatch: they see different models: a branch moved, or folders differ.
        """
        mine, theirs = self.costs, other.costs
        alike = mine.layer_groups == theirs.layer_groups and mine.groups == theirs.groups
        if self.model.commit != other.model.commit or not alike:
            raise PipelineMismatch(
                f"{self.host} and {other.host} see different models as {self.model.model_id}: "
                f"{self._words}, and {other._words}; name the commit with --revision, or copy one "
                "folder to all hosts"
            )
        here = {name: cost for name, cost in theirs.quantizations.items() if name in quantizations}
        lacking = {name: why for name, why in theirs.unavailable.items() if name in quantizations}
        others = {name: cost for name, cost in mine.quantizations.items() if name not in lacking}
        reasons = {name: why for name, why in mine.unavailable.items() if name not in here}
        costs = replace(mine, quantizations=others | here, unavailable=reasons | lacking)
        return replace(self, costs=costs)

    @property
    def _words(self) -> str:
        size_bytes = sum(group.size_bytes for group in self.costs.groups.values())
        where = self.model.commit or "a folder"
        return f"{where} with {self.costs.num_layers} layers of {size_bytes} bytes"
