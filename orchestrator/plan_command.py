"""The subcommand `orchestrator plan`: which host would hold what, before anything is fetched."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.bundle.words import printable
from orchestrator.plan_options import PlanOptions, add_json_flag, add_plan_options, options_from
from orchestrator.subcommand import Subcommand
from worker.protocol.exits import ExitCode
from worker.protocol.schema import to_fields

if TYPE_CHECKING:
    from contextlib import ExitStack

    from orchestrator.hosts import HostEntry
    from orchestrator.plan import Plan
    from orchestrator.stage_specs import Ways
    from orchestrator.survey import Survey


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_plan_options(parser)
    add_json_flag(parser)


def _run(options: PlanOptions, command: Sequence[str]) -> int:
    from orchestrator.command import finish

    return finish(lambda hold: _plan(options, hold), as_json=options.json)


async def _plan(options: PlanOptions, hold: ExitStack) -> int:
    from orchestrator.bundle.screen import screen_for
    from orchestrator.command import put
    from orchestrator.config import surroundings
    from orchestrator.placement import DoesNotFit
    from orchestrator.placement.table import show_misfit, show_placement
    from orchestrator.placing import ask, placed_plan
    from orchestrator.setting import plan_setting

    setting, screen = plan_setting(options, surroundings(), hold), screen_for(sys.stdout)
    survey = await ask(setting)
    try:
        plan = placed_plan(setting, survey)
    except DoesNotFit as misfit:
        if not options.json:
            show_misfit(misfit, screen)
        raise
    if options.json:
        put(json.dumps(_fields(plan, survey, setting.ways), indent=2))
        return ExitCode.OK
    assert plan.placement is not None
    screen.line(_headline(survey))
    show_placement(plan.placement, screen)
    screen.line(_threads_line(plan))
    for note in plan.notes:
        if note not in plan.placement.notes:
            screen.line(f"note: {note}", "yellow")
    return ExitCode.OK


def _headline(survey: Survey) -> str:
    model = survey.model
    commit = f" at {model.commit[:12]}" if model.commit else ""
    return (
        f"{printable(model.model_id, 200)}{commit} ({printable(model.model_type, 40)}), "
        f"{model.max_context} positions, prefill in chunks of {model.prefill_chunk}"
    )


def _threads_line(plan: Plan) -> str:
    """Say how many compute threads each stage is given."""
    counts = [spec.options.threads for spec in plan.specs]
    words = ["as many as torch takes" if count is None else str(count) for count in counts]
    return f"compute threads, by stage: {', '.join(words)}"


def _fields(plan: Plan, survey: Survey, ways: Ways) -> dict[str, Any]:
    assert plan.placement is not None
    model = survey.model
    return {
        "model": {
            "model_id": model.model_id,
            "commit": model.commit,
            "model_type": model.model_type,
            "num_layers": survey.costs.num_layers,
            "max_context": model.max_context,
            "prefill_chunk": model.prefill_chunk,
            "size_bytes": sum(group.size_bytes for group in survey.costs.groups.values()),
        },
        "hosts": [
            {"name": ways.name_of(entry), "label": entry.label, **_host_fields(survey, entry)}
            for entry in survey.hosts
        ],
        "plan": plan.placement.to_json(),
        "threads": [spec.options.threads for spec in plan.specs],
        "notes": list(plan.notes),
    }


def _host_fields(survey: Survey, entry: HostEntry) -> dict[str, Any]:
    """Return its bound and what a host told, but for the lists of what it has of the model."""
    fields = to_fields(survey.hosts[entry])
    told = {name: value for name, value in fields.items() if not name.startswith("cached_")}
    return {"memory_limit_bytes": entry.memory_bytes, **told}


PLAN = Subcommand(
    name="plan",
    short="print which host would hold which layers",
    about="""\
Ask every host for its memory, disk and speed, read the model's headers, and print which host
would hold which layers, or why they cannot hold it and what would help. Fetches no weights.""",
    usage="%(prog)s (--hosts FILE | --local N | --slurm) --model-id ID [options]",
    add_options=_add_options,
    read_options=lambda parser, parsed: options_from(PlanOptions, parsed),
    run=_run,
)
