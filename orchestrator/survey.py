"""What the hosts offer and what the model costs, asked of all hosts at once.

The first host looks at the model; so does each that is to quantize it, because libraries differ or
lack. A folder is looked at by every host: each needs its own copy. Of the weights only the headers
are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from orchestrator.errand_kind import ErrandKind
from orchestrator.failures import ProtocolViolation, Scene
from orchestrator.hosts import HostEntry
from orchestrator.layer_plan import PlanError
from orchestrator.model_seen import ModelSeen
from orchestrator.placement import Slot
from orchestrator.plan import slots_of
from orchestrator.setting import Setting
from orchestrator.specs import StageSpec
from orchestrator.stage_specs import Place, spec_of
from worker.protocol.costs import CostsUnreadable, ModelCosts
from worker.protocol.events import Event, HostSurveyed, ModelSurveyed

E = TypeVar("E", bound=Event)
# The quantization that every host can load.
_PLAIN = "bfloat16"
_SAME_VERSION = "install the same version of stageline on both"


@dataclass(frozen=True, slots=True)
class Survey:
    """What the hosts told.

    Attributes:
        hosts: by line of the hosts file.
        model: as the first host sees it.
        costs: what it costs, each quantization as the first host counted it that is to load it.
        unavailable: by line, the quantizations that its host lacks, each with the reason.
        entries: the lines that were asked, with spare hosts in the place of those that could not
            be reached.
        notes: what is to be said of these.
    """

    hosts: Mapping[HostEntry, HostSurveyed]
    model: ModelSurveyed
    costs: ModelCosts
    unavailable: Mapping[HostEntry, Mapping[str, str]]
    entries: Sequence[HostEntry] = ()
    notes: tuple[str, ...] = ()


def survey_specs(setting: Setting) -> list[StageSpec]:
    """Return one worker for each place; lines that name the same place share it.

    Raises:
        PlanError: a line asks for what cannot be.
    """
    asked = _asked(setting)
    lines = {_place(entry): entry.line for entry in reversed(setting.entries)}  # each one's first
    # All quantizations are looked at, so none is asked for: to lack one is no error.
    options = replace(setting.worker, quantization=None, memory_limit_bytes=None)
    labels = Counter(entry.label for entry in asked)
    specs = [
        spec_of(
            Place(replace(entry, line=lines[entry]), index, len(asked)),
            replace(options, only=kind),
            setting.ways,
            local_workers=1,
        )
        for index, (entry, (kind, _)) in enumerate(asked.items())
    ]
    return [replace(spec, is_one_of_several=labels[spec.host] > 1) for spec in specs]


def lines_asked(setting: Setting) -> list[list[HostEntry]]:
    """Return, for each worker of `survey_specs`, the lines that it is asked for."""
    lines = [entry for entry in setting.entries if not entry.spare]
    return [[line for line in lines if _place(line) == place] for place in _asked(setting)]


def read_survey(
    setting: Setting, specs: Sequence[StageSpec], told: Sequence[Sequence[Event]]
) -> Survey:
    """Return what the workers of `survey_specs` told.

    Raises:
        ProtocolViolation: one did not tell what it was asked.
        PipelineMismatch: two of them see different models.
    """
    asked = _asked(setting)
    hosts: dict[HostEntry, HostSurveyed] = {}
    lacking: dict[HostEntry, Mapping[str, str]] = {}
    seen: ModelSeen | None = None
    for (place, (kind, names)), spec, events in zip(asked.items(), specs, told, strict=True):
        hosts[place] = _told(spec, events, HostSurveyed, "its host")
        if kind is ErrandKind.SURVEY:
            model = _told(spec, events, ModelSurveyed, "the model")
            one = ModelSeen(spec.host, model, _costs(spec, model))
            seen = seen.joined(one, names) if seen else one
            lacking[place] = one.costs.unavailable
    assert seen is not None, "the first place is asked for the model"
    slots = slots_of(setting.entries)
    return Survey(
        {entry: hosts[_place(entry)] for entry in slots},
        seen.model,
        seen.costs,
        {entry: lacking.get(_place(entry), {}) for entry in slots},
        setting.entries,
    )


def surveyed_slots(setting: Setting, survey: Survey) -> list[Slot]:
    """Return every slot of the hosts file with what its host offers.

    Raises:
        PlanError: a host cannot load the quantization that it is to hold.
    """
    return [_slot(setting, entry, survey) for entry in slots_of(setting.entries)]


def _asked(setting: Setting) -> dict[HostEntry, tuple[ErrandKind, tuple[str, ...]]]:
    """Return the places, each with its errand and the quantizations that count as it tells them."""
    everywhere = _is_folder(setting.worker.model_id or "")
    first: dict[str, HostEntry] = {}
    looks: dict[HostEntry, bool] = {}
    places: dict[HostEntry, list[str]] = {}
    for entry in setting.entries:
        if not entry.spare:
            place, wanted = _place(entry), _quantization(setting, entry)
            names = places.setdefault(place, [])
            if first.setdefault(wanted, place) is place:
                names.append(wanted)
            must_look = bool(names) or everywhere or wanted != _PLAIN
            looks[place] = must_look or looks.get(place, False)
    return {
        place: (ErrandKind.SURVEY if looks[place] else ErrandKind.SURVEY_HOST, tuple(names))
        for place, names in places.items()
    }


def _is_folder(model_id: str) -> bool:
    """Tell whether a model is meant that is on the hosts, and not on a hub."""
    return model_id.startswith(("/", ".", "~")) or Path(model_id).is_dir()


def _quantization(setting: Setting, entry: HostEntry) -> str:
    return entry.quantization or setting.worker.quantization or _PLAIN


def _place(entry: HostEntry) -> HostEntry:
    """Return the entry without what makes no difference to a survey.

    The bound of the memory is one of them: the plan itself takes it into account.
    """
    # The same launcher may choose another machine each time, as a bare srun does; one that has
    # the name of a machine does not.
    line = 0 if entry.command is None or entry.name is not None else entry.line
    return replace(
        entry,
        line=line,
        slots=1,
        layers=None,
        quantization=None,
        engine=None,
        memory_bytes=None,
        text="",
    )


def _told(spec: StageSpec, events: Sequence[Event], kind: type[E], what: str) -> E:
    for event in events:
        if isinstance(event, kind):
            return event
    raise ProtocolViolation(_scene(spec), f"ended well but told nothing of {what}; {_SAME_VERSION}")


def _costs(spec: StageSpec, model: ModelSurveyed) -> ModelCosts:
    try:
        return ModelCosts.from_fields(model.costs)
    except CostsUnreadable as error:
        cause = f"told what cannot be understood: {error}; {_SAME_VERSION}"
        raise ProtocolViolation(_scene(spec), cause) from None


def _scene(spec: StageSpec) -> Scene:
    return Scene(stage=spec.stage, host=spec.host, phase=ErrandKind.SURVEY.doing, title=spec.title)


def _slot(setting: Setting, entry: HostEntry, survey: Survey) -> Slot:
    host, commit, costs = survey.hosts[entry], survey.model.commit, survey.costs
    name, quantization = setting.ways.name_of(entry), _quantization(setting, entry)
    lacking = survey.unavailable[entry]
    if quantization not in costs.quantizations or quantization in lacking:
        known = {**costs.unavailable, **lacking}
        reason = known.get(quantization, "the host does not know it")
        others = ", ".join(q for q in costs.quantizations if q not in lacking) or "none"
        raise PlanError(
            f"{name} ({entry.label}) cannot hold this model as {quantization}: {reason}; it can "
            f"as: {others}"
        )
    groups = host.cached_groups.get(commit or "", ())
    return Slot(
        name=name,
        host=entry.label,
        machine=host.machine,
        device=host.device,
        quantization=quantization,
        layers=entry.layers,
        free_bytes=host.free_bytes,
        resident_bytes=host.resident_bytes,
        memory_limit_bytes=entry.memory_bytes or setting.worker.memory_limit_bytes,
        read_gbps=host.read_gbps,
        disk_free_bytes=host.disk_free_bytes,
        cache_path=host.cache_path,
        # A folder has no commit, and nothing of it is ever fetched.
        cached_groups=frozenset(groups if commit else costs.groups),
        cached_files=frozenset(host.cached_files.get(commit or "", ())),
    )
