"""The hosts to look at: one for each place that the hosts file names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.hosts import HostEntry
from orchestrator.setting import Setting
from orchestrator.specs import StageSpec
from orchestrator.stage_specs import Place, spec_of


@dataclass(frozen=True, slots=True)
class Subject:
    """A place, and what its lines want of it.

    Attributes:
        name: its first line in the hosts file.
        spec: a worker there, without a model.
        devices: what its lines and the command line ask for.
        quantizations: the same.
        memory_bytes: what its stages may use together, where its lines say so.
        num_stages: how many stages its lines name.
    """

    name: str
    spec: StageSpec
    is_spare: bool
    devices: tuple[str, ...]
    quantizations: tuple[str, ...]
    memory_bytes: int
    num_stages: int


def subjects_of(setting: Setting) -> list[Subject]:
    """Return the places in file order, spare ones too.

    Raises:
        PlanError: a line asks for what cannot be.
    """
    places: dict[HostEntry, list[HostEntry]] = {}
    for entry in setting.entries:
        places.setdefault(_place(entry), []).append(entry)
    return [
        _subject(setting, index, lines, len(places)) for index, lines in enumerate(places.values())
    ]


def _place(entry: HostEntry) -> HostEntry:
    """Return the entry without what makes no difference to the place."""
    # The same launcher may choose another machine each time, as srun does.
    line = 0 if entry.command is None else entry.line
    return replace(
        entry,
        line=line,
        spare=False,
        slots=1,
        layers=None,
        device=None,
        quantization=None,
        engine=None,
        memory_bytes=None,
        text="",
    )


def _subject(setting: Setting, index: int, lines: Sequence[HostEntry], count: int) -> Subject:
    first = replace(lines[0], quantization=None, memory_bytes=None)
    worker = replace(setting.worker, model_id=None, quantization=None, memory_limit_bytes=None)
    given = setting.worker
    return Subject(
        name=setting.ways.name_of(first),
        spec=spec_of(Place(first, index, count), worker, setting.ways, local_workers=1),
        is_spare=all(line.spare for line in lines),
        devices=_distinct([line.device or given.device or "auto" for line in lines]),
        quantizations=_distinct(
            [line.quantization or given.quantization or "bfloat16" for line in lines]
        ),
        memory_bytes=sum((line.memory_bytes or 0) * line.slots for line in lines),
        num_stages=sum(line.slots for line in lines),
    )


def _distinct(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
