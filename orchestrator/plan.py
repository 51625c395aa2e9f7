"""Hosts and a model -> the stages to start, and what the user should hear about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.hosts import HostEntry
from orchestrator.layer_count import STUB_LAYERS, count_layers
from orchestrator.layer_plan import PlanError, Wish, plan_layers, stages_of
from orchestrator.recovery import SpareSlot
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stage_specs import Place, Ways, spec_of

if TYPE_CHECKING:
    from orchestrator.placement import Placement


# A second stage for each core is no waste yet: one may wait for the network.
_STAGES_A_CORE = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages in order, and notes for the user: one sentence each.

    Attributes:
        placement: what each stage needs and gets, where the hosts were asked.
        spares: room for stages whose host is lost.
    """

    specs: tuple[StageSpec, ...]
    notes: tuple[str, ...]
    placement: Placement | None = None
    spares: tuple[SpareSlot, ...] = ()


def make_plan(entries: Sequence[HostEntry], options: WorkerOptions, ways: Ways) -> Plan:
    """Plan one stage for each slot of the hosts that are no spares.

    Where no host asks for layers of its own, each worker splits the layers itself, evenly.

    Raises:
        PlanError: layers and hosts do not fit together.
    """
    slots = slots_of(entries)
    notes = spare_notes(entries)
    if any(entry.layers for entry in slots):
        placed = _wished(slots, options, ways)
    else:
        placed = [(entry, None) for entry in slots[: _known_layers(options)]]
    used = [entry for entry, _ in placed]
    notes += crowded_notes(slots, used, ways)
    local_workers = sum(entry.is_local for entry in used)
    on_cores = sum(
        entry.is_local and not (entry.device or options.device or "").startswith(("cuda", "mps"))
        for entry in used
    )
    if is_crowded(on_cores, ways.cores) and not options.stub:
        notes.append(cores_note("local", on_cores, ways.cores))
    specs = tuple(
        spec_of(
            Place(entry, stage, len(placed), layers), options, ways, local_workers=local_workers
        )
        for stage, (entry, layers) in enumerate(placed)
    )
    return Plan(specs, tuple(notes), spares=spare_slots(entries, specs, ways))


def slots_of(entries: Sequence[HostEntry]) -> list[HostEntry]:
    """Return the entry of each slot that a stage can be planned on, in file order."""
    return [entry for entry in entries if not entry.spare for _ in range(entry.slots)]


def spare_notes(entries: Sequence[HostEntry]) -> list[str]:
    """Return what is to be said of the spare hosts."""
    return [
        f"spare host {entry.label} is kept aside until a stage is lost"
        for entry in entries
        if entry.spare
    ]


def spare_slots(
    entries: Sequence[HostEntry], specs: Sequence[StageSpec], ways: Ways
) -> tuple[SpareSlot, ...]:
    """Return the slots of the spare hosts, in file order.

    Raises:
        PlanError: the line of one asks for what cannot be.
    """
    slots = tuple(
        SpareSlot(entry.label, partial(_moved, entry, ways))
        for entry in entries
        if entry.spare
        for _ in range(entry.slots)
    )
    for slot in slots:
        slot.spec_for(specs[0])
    return slots


def _moved(entry: HostEntry, ways: Ways, lost: StageSpec) -> StageSpec:
    """Return what starts a lost stage on a spare host.

    The model, the quantization and the threads are the lost stage's, for they decide bits; where
    the worker runs and how much memory it may take is the spare's own.
    """
    own = replace(lost.options, device=None, memory_limit_bytes=None, lease_s=None)
    entry = replace(entry, quantization=None)
    place = Place(entry, lost.stage, lost.num_stages, lost.layers)
    return spec_of(place, own, ways, local_workers=lost.num_stages)


def crowded_notes(slots: Sequence[HostEntry], used: Sequence[HostEntry], ways: Ways) -> list[str]:
    """Return what is to be said of slots that get no layer of an even split."""
    return [
        f"{stages_of(left, entry.slots)}{ways.name_of(entry)} ({entry.label}) left out: there are "
        "more stages than layers for them"
        for entry in dict.fromkeys(slots)
        if (left := entry.slots - used.count(entry))
    ]


def is_crowded(num_stages: int, cores: int) -> bool:
    """Tell whether so many stages on the cores of one machine are worth a word."""
    return num_stages > _STAGES_A_CORE * cores


def cores_note(host: str, num_stages: int, cores: int) -> str:
    """Return what is to be said of many stages on the cores of one machine."""
    return (
        f"{num_stages} stages on {counted(cores, 'core')} of {host}: they take turns, each has the "
        f"libraries in memory once more (some 350 MiB), and more than {counted(cores, 'stage')} "
        "there make no answer faster"
    )


def counted(count: int, thing: str) -> str:
    """Return `1 core`, `2 cores`."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _wished(
    slots: Sequence[HostEntry], options: WorkerOptions, ways: Ways
) -> list[tuple[HostEntry, tuple[int, int] | None]]:
    """Return the slots in layer order, each with its layers."""
    assert options.model_id is not None or options.stub
    layers = STUB_LAYERS if options.stub else count_layers(options.model_id or "", options.revision)
    planned = plan_layers([Wish(ways.name_of(entry), entry.layers) for entry in slots], layers)
    return [(slots[index], (s.shard_start, s.shard_end)) for index, s in planned.items()]


def _known_layers(options: WorkerOptions) -> int | None:
    """Return the number of layers where it can be told at once; None leaves it to the workers."""
    if options.stub:
        return STUB_LAYERS
    if options.model_id is None or not Path(options.model_id).expanduser().is_dir():
        return None
    try:
        return count_layers(options.model_id, options.revision)
    except PlanError:
        return None  # The worker looks at the folder more closely and says what is wrong.
