"""Plan the stages of a bench, and what is known of their hosts' memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.bundle.held import HeldRecorder
from orchestrator.failures import StageFailure
from orchestrator.placement.stage_cost import StageCosts
from orchestrator.placing import ask, placed_plan
from orchestrator.plan import Plan, make_plan, slots_of
from orchestrator.run_bundle import Diary
from orchestrator.setting import Setting
from orchestrator.survey import Survey, survey_specs


@dataclass(frozen=True, slots=True)
class Reading:
    """What one token reads on a stage, and how fast its host reads memory."""

    read_bytes: int
    memory_gbps: float


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan; `readings` by stage, None where the host was not asked."""

    plan: Plan
    readings: tuple[Reading | None, ...]


async def planned(setting: Setting, diary: Diary) -> Planned:
    """Survey the hosts, also where a run would not, unless that is off or there is no model.

    Raises:
        StageFailure: a host cannot be surveyed; the bundle has what it told.
        PlanError, Interrupted: see `settle`.
    """
    if setting.even_split or setting.worker.stub:
        plan = make_plan(setting.entries, setting.worker, setting.ways)
        return Planned(plan, (None,) * len(plan.specs))
    held = HeldRecorder()
    try:
        survey = await ask(_as_stages(setting), held)
    except StageFailure:
        diary.open_survey(setting.entries, survey_specs(setting), held)
        raise
    plan = placed_plan(setting, survey)
    return Planned(plan, readings_of(setting, survey, plan))


def _as_stages(setting: Setting) -> Setting:
    """Have memory measured with as many threads as each stage will have, where all are here."""
    slots = slots_of(setting.entries)
    if setting.worker.threads is not None or not all(entry.is_local for entry in slots):
        return setting
    threads = max(1, setting.ways.cores // len(slots))
    return replace(setting, worker=replace(setting.worker, threads=threads))


def readings_of(setting: Setting, survey: Survey, plan: Plan) -> tuple[Reading | None, ...]:
    """Return what each stage of a plan with a placement reads for a token."""
    assert plan.placement is not None
    hosts = {setting.ways.name_of(entry): host for entry, host in survey.hosts.items()}
    found: list[Reading | None] = []
    for stage in plan.placement.stages:
        host, costs = hosts[stage.slot.name], StageCosts(survey.costs, stage.slot.quantization)
        memory_gbps = host.memory_gbps or host.read_gbps
        reading = Reading(costs.read_bytes(*stage.layers), memory_gbps)
        found.append(reading if memory_gbps else None)
    return tuple(found)
