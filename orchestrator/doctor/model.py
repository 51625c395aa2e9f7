"""Whether each host can get at a model: a worker there reads its headers, as a plan would."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.doctor.examine import Examination
from orchestrator.doctor.result import HostReport, Result, Status
from orchestrator.errand import Errands
from orchestrator.errand_kind import ErrandKind
from orchestrator.failures import StageFailure
from orchestrator.placement.amounts import size_words
from orchestrator.specs import WorkerOptions
from orchestrator.timeouts import Timeouts
from orchestrator.visit.check import Check
from worker.protocol.costs import CostsUnreadable, ModelCosts
from worker.protocol.events import Event, ModelSurveyed

# A worker there imports the libraries for it; more at once would only wait for each other here.
_AT_ONCE = 16


async def look_at_model(
    examinations: Sequence[Examination], worker: WorkerOptions, timeouts: Timeouts
) -> None:
    """Add the check of the model to the reports of the hosts that can run a worker."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def look(examination: Examination) -> None:
        async with room:
            await _look(examination, worker, timeouts)

    able = [one for one in examinations if _can_run(one.report)]
    await asyncio.gather(*(look(one) for one in able))


def _can_run(report: HostReport) -> bool:
    passed = (Check.PYTHON, Check.PACKAGES, Check.CODE)
    return all(report.result(check).status in (Status.OK, Status.WARNING) for check in passed)


async def _look(examination: Examination, worker: WorkerOptions, timeouts: Timeouts) -> None:
    spec = examination.mend.subject.spec
    options = replace(
        spec.options,
        model_id=worker.model_id,
        revision=worker.revision,
        trust_remote_code=worker.trust_remote_code,
        only=ErrandKind.SURVEY,
    )
    try:
        (events,) = await Errands([replace(spec, options=options)], timeouts=timeouts).run()
    except StageFailure as failure:
        seen, _, advice = failure.cause.partition("; ")
        examination.report.results[Check.MODEL] = Result(Status.FAILED, seen, mend=advice)
        return
    examination.report.results[Check.MODEL] = _judged(examination.report, events)


def _judged(report: HostReport, events: Sequence[Event]) -> Result:
    model = next((event for event in events if isinstance(event, ModelSurveyed)), None)
    if model is None:
        return Result(Status.FAILED, "ended well but told nothing of the model")
    try:
        costs = ModelCosts.from_fields(model.costs)
    except CostsUnreadable as error:
        return Result(Status.FAILED, f"told what cannot be understood: {error}")
    size_bytes = sum(group.size_bytes for group in costs.groups.values())
    report.facts["model"] = {
        "model_id": model.model_id,
        "commit": model.commit,
        "model_type": model.model_type,
        "size_bytes": size_bytes,
        "elapsed_ms": model.elapsed_ms,
    }
    return Result(Status.OK, f"can read the model, {size_words(size_bytes)} of weights in all")
