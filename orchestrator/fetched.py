"""What one stage had to fetch before a run could start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.bundle.fetch_facts import FetchFacts
from orchestrator.bundle.words import printable, size, span

if TYPE_CHECKING:
    from orchestrator.specs import StageSpec


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one stage had to fetch."""

    spec: StageSpec
    facts: FetchFacts

    def to_json(self) -> dict[str, Any]:
        """Return it as decoded JSON; names are stable and carry their units."""
        facts, layers = self.facts, self.spec.layers
        return {
            "stage": self.spec.stage,
            "host": self.spec.host,
            "layers": None if layers is None else list(layers),
            "stage_bytes": facts.total_bytes,
            "fetched_bytes": facts.fetched_bytes,
            "elapsed_ms": facts.elapsed_ms,
            "mbps": facts.mbps,
        }

    def cells(self) -> tuple[str, ...]:
        """Return its row of the table."""
        facts, layers = self.facts, self.spec.layers
        came = (size(facts.fetched_bytes), span(facts.elapsed_ms), f"{facts.mbps:.1f}")
        return (
            str(self.spec.stage),
            printable(self.spec.host, 28),
            "-" if layers is None else f"{layers[0]}:{layers[1]}",
            size(facts.total_bytes),
            *(came if facts.fetched_bytes else ("nothing", "", "")),
        )
