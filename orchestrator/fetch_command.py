"""The subcommand `orchestrator fetch`: bring each stage's weights to its host, load nothing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.bundle.words import size
from orchestrator.errand_kind import ErrandKind
from orchestrator.plan_options import PlanOptions, add_json_flag, add_plan_options, options_from
from orchestrator.subcommand import Subcommand
from worker.protocol.exits import ExitCode

if TYPE_CHECKING:
    from contextlib import ExitStack

    from orchestrator.fetched import Fetched


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_plan_options(parser)
    add_json_flag(parser)


def _run(options: PlanOptions, command: Sequence[str]) -> int:
    from orchestrator.command import finish

    return finish(lambda hold: _fetch(options, hold), as_json=options.json)


async def _fetch(options: PlanOptions, hold: ExitStack) -> int:
    from orchestrator.bundle.fetch_facts import FetchFacts, fetch_among
    from orchestrator.command import put
    from orchestrator.config import surroundings
    from orchestrator.errand_run import run_errands
    from orchestrator.fetched import Fetched
    from orchestrator.placing import settle
    from orchestrator.setting import plan_setting
    from orchestrator.stderr import is_watched, say

    setting = plan_setting(options, surroundings(), hold, is_watched=is_watched())
    plan = await settle(setting)
    for note in plan.notes:
        say(f"note: {note}")
    specs = [
        replace(spec, options=replace(spec.options, only=ErrandKind.FETCH)) for spec in plan.specs
    ]
    told = await run_errands(specs, setting.timeouts)
    fetched = [
        Fetched(spec, fetch_among(events) or FetchFacts())
        for spec, events in zip(specs, told, strict=True)
    ]
    if options.json:
        stages = [one.to_json() for one in fetched]
        put(json.dumps({"stages": stages, "notes": list(plan.notes)}, indent=2))
    else:
        _show(fetched)
    return ExitCode.OK


def _show(fetched: Sequence[Fetched]) -> None:
    from orchestrator.bundle.screen import Table, screen_for

    screen = screen_for(sys.stdout)
    columns = (">size", ">fetched", ">took", ">MB/s")
    rows = tuple(one.cells() for one in fetched)
    screen.table(Table((">stage", "host", "layers", *columns), rows))
    total_bytes = sum(one.facts.fetched_bytes for one in fetched)
    if total_bytes:
        screen.line(
            f"fetched {size(total_bytes)}; the next run with the same options fetches nothing"
        )
    else:
        screen.line("nothing to fetch: every stage has its weights")


FETCH = Subcommand(
    name="fetch",
    short="bring each stage's weights to its host",
    about="""\
Plan as `run` does and bring the weights of each stage to its host, so that the next run fetches
nothing. What was interrupted goes on where it stopped.""",
    usage="%(prog)s (--hosts FILE | --local N | --slurm) --model-id ID [options]",
    add_options=_add_options,
    read_options=lambda parser, parsed: options_from(PlanOptions, parsed),
    run=_run,
)
