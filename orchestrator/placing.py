"""Hosts and a model -> a plan: by asking the hosts where there is a choice, else at once."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.bundle.records import Recorder
from orchestrator.errand_run import RunErrands, run_errands
from orchestrator.failures import HostsNotAsked, StageFailure
from orchestrator.hosts import HostEntry
from orchestrator.layer_plan import PlanError, Wish, plan_layers
from orchestrator.placement import Slot, place
from orchestrator.plan import (
    Plan,
    cores_note,
    crowded_notes,
    is_crowded,
    make_plan,
    slots_of,
    spare_notes,
    spare_slots,
)
from orchestrator.setting import Setting
from orchestrator.stage_specs import Place, spec_of
from orchestrator.stand_in import with_spares
from orchestrator.survey import Survey, read_survey, survey_specs, surveyed_slots
from worker.protocol.costs import ModelCosts
from worker.protocol.exits import ExitCode


def has_choice(setting: Setting) -> bool:
    """Tell whether it matters which host gets which layers.

    It does not for one stage, for a stub, where the hosts file names all layers, and on one
    machine whose workers are all alike: they get even shares.
    """
    slots = slots_of(setting.entries)
    if setting.even_split or setting.worker.stub or len(slots) == 1:
        return False
    if all(entry.layers for entry in slots):
        return False
    kinds = {replace(entry, line=0, slots=1, layers=None, text="") for entry in slots}
    return len(kinds) > 1 or not slots[0].is_local


async def settle(
    setting: Setting, recorder: Recorder | None = None, errands: RunErrands = run_errands
) -> Plan:
    """Plan the stages, with a survey of the hosts where they have a choice.

    Raises:
        StageFailure: a host cannot be surveyed.
        PlanError: layers and hosts do not fit together; `DoesNotFit` where memory or disk is
            what lacks.
        Interrupted: a signal came.
    """
    if not has_choice(setting):
        return make_plan(setting.entries, setting.worker, setting.ways)
    return placed_plan(setting, await ask(setting, recorder, errands))


async def ask(
    setting: Setting, recorder: Recorder | None = None, errands: RunErrands = run_errands
) -> Survey:
    """Survey the hosts and the model; a spare is asked in the place of a host that is not there.

    Raises:
        StageFailure: a host cannot be surveyed, and no spare is left for it.
        Interrupted: a signal came.
    """
    notes: tuple[str, ...] = ()
    gone: tuple[StageFailure, ...] = ()
    while True:
        specs = survey_specs(setting)
        try:
            told = await errands(specs, setting.timeouts, recorder)
        except StageFailure as lost:
            failures = lost.failures if isinstance(lost, HostsNotAsked) else (lost,)
            stood_in, advice = with_spares(setting, failures), _doctor_line(setting, failures)
            if stood_in is None and not advice and not gone:
                raise
            gone = (*gone, *failures)
            if stood_in is None:
                raise HostsNotAsked(gone, advice) from None
            setting, notes = stood_in.setting, (*notes, *stood_in.notes)
        else:
            return replace(read_survey(setting, specs, told), notes=notes)


def _doctor_line(setting: Setting, failures: Sequence[StageFailure]) -> str:
    """Return what to run for hosts that cannot be used; "" where they can, but the model not."""
    is_host = any(failure.exit_code == ExitCode.PEER_GONE for failure in failures)
    if not is_host or not setting.ways.is_file:
        return ""
    command = shlex.join(("orchestrator", "doctor", "--hosts", setting.ways.hosts_name))
    return f"see what mends that with: {command}"


def placed_plan(setting: Setting, survey: Survey) -> Plan:
    """Plan the stages by what the hosts told.

    Raises:
        PlanError: layers and hosts do not fit together; `DoesNotFit` where memory or disk is
            what lacks.
    """
    setting = replace(setting, entries=survey.entries)
    slots, is_even = surveyed_slots(setting, survey), not has_choice(setting)
    # All of the model on one slot is nobody's wish: the refusal says how much of it finds room.
    if is_even and len(slots) > 1:
        slots = _evenly(slots, survey.costs)
    placement = place(slots, survey.costs, max_context=survey.model.max_context)
    by_name = {setting.ways.name_of(entry): entry for entry in slots_of(setting.entries)}
    entries = [by_name[stage.slot.name] for stage in placement.stages]
    # Every host loads the commit that was surveyed, whatever the revision names by then.
    options, commit = setting.worker, survey.model.commit
    if commit is not None:
        repo_id = (options.model_id or "").partition("@")[0]
        options = replace(options, model_id=repo_id, revision=commit)
    local_workers = sum(entry.is_local for entry in entries)
    threads = _threads(entries, survey)
    specs = tuple(
        spec_of(
            Place(entry, index, len(entries), stage.layers, threads[index]),
            options,
            setting.ways,
            local_workers=local_workers,
        )
        for index, (entry, stage) in enumerate(zip(entries, placement.stages, strict=True))
    )
    crowded = crowded_notes(slots_of(setting.entries), entries, setting.ways) if is_even else ()
    notes = (
        *survey.notes,
        *spare_notes(setting.entries),
        *crowded,
        *_cores_notes(setting, entries, survey),
        *placement.notes,
    )
    spares = spare_slots(setting.entries, specs, setting.ways)
    return Plan(specs, notes, placement, spares)


def _threads(entries: Sequence[HostEntry], survey: Survey) -> list[int | None]:
    """Share the processors of each machine out to the stages that compute on them there."""
    hosts = [survey.hosts[entry] for entry in entries]
    sharing = Counter(host.machine or host.host for host in hosts if host.threads)
    return [
        max(1, host.threads // sharing[host.machine or host.host]) if host.threads else None
        for host in hosts
    ]


def _cores_notes(setting: Setting, entries: Sequence[HostEntry], survey: Survey) -> list[str]:
    """Return what is to be said of machines with many stages and few cores."""
    counts: Counter[str] = Counter()
    machines: dict[str, tuple[str, int]] = {}
    for entry in entries:
        host = survey.hosts[entry]
        # With --threads a host tells of these, and not of its cores.
        cores = setting.ways.cores if entry.is_local else host.threads
        if host.threads and (entry.is_local or setting.worker.threads is None):
            machine = host.machine or host.host
            counts[machine] += 1
            machines.setdefault(machine, (entry.label, cores))
    return [
        cores_note(label, counts[machine], cores)
        for machine, (label, cores) in machines.items()
        if is_crowded(counts[machine], cores)
    ]


def _evenly(slots: Sequence[Slot], costs: ModelCosts) -> list[Slot]:
    """Give each slot the layers that it gets without a survey; slots without any are left away.

    Raises:
        PlanError: the model cannot be parted there, which its workers would refuse as well.
    """
    wishes = [Wish(slot.name, slot.layers) for slot in slots]
    planned = plan_layers(wishes, costs.num_layers)
    for index, own in planned.items():
        start = own.shard_start
        if (
            slots[index].layers is None
            and start
            and costs.cuts is not None
            and start not in costs.cuts
        ):
            cuts = ", ".join(map(str, costs.cuts or ())) or "none"
            raise PlanError(
                f"the even split of {len(planned)} stages parts the model at layer {start}, where "
                f"it cannot be parted (it can at: {cuts}); give layers= in a hosts file"
            )
    return [
        replace(
            slots[index],
            layers=(own.shard_start, own.shard_end),
            is_even=slots[index].layers is None,
        )
        for index, own in planned.items()
    ]
