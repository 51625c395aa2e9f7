"""Spare hosts in the place of those that a survey could not reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.failures import HostUnreachable, SpawnFailed, StageFailure
from orchestrator.hosts import HostEntry
from orchestrator.setting import Setting
from orchestrator.survey import lines_asked


@dataclass(frozen=True, slots=True)
class StoodIn:
    """Hosts with spares in the place of some, and what is to be said of it."""

    setting: Setting
    notes: tuple[str, ...]


def with_spares(setting: Setting, failures: Sequence[StageFailure]) -> StoodIn | None:
    """Put a spare line in the place of each line that could not be asked.

    A spare takes over the layers and the quantization of that line, and its engine where it names
    none of its own; how many slots it has is its own.

    Returns:
        None where that would not help, or there are not enough spares.
    """
    if not all(isinstance(one, HostUnreachable | SpawnFailed) for one in failures):
        return None
    asked = lines_asked(setting)
    gone = [(line, one) for one in failures for line in asked[one.scene.stage]]
    spares = [entry for entry in setting.entries if entry.spare]
    if len(spares) < len(gone):
        return None
    taken = {line: spare for (line, _), spare in zip(gone, spares, strict=False)}
    entries = [
        _moved(entry, taken[entry]) if entry in taken else entry
        for entry in setting.entries
        if entry not in taken.values()
    ]
    notes = tuple(
        f"spare host {taken[line].label} takes the place of {line.label}: {failure}"
        for line, failure in gone
    )
    return StoodIn(replace(setting, entries=entries), notes)


def _moved(line: HostEntry, spare: HostEntry) -> HostEntry:
    return replace(
        spare,
        spare=False,
        slots=1 if line.layers else spare.slots,
        layers=line.layers,
        quantization=line.quantization,
        engine=spare.engine or line.engine,
    )
