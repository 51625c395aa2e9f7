"""The subcommand `orchestrator fetch`: bring each stage's weights to its host, load nothing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.bundle.fetch_facts import FetchFacts, fetch_among
from orchestrator.bundle.words import printable, size, span
from orchestrator.errand_kind import ErrandKind
from orchestrator.plan_options import PlanOptions, add_plan_options, options_from
from worker.protocol.exits import ExitCode

if TYPE_CHECKING:
    from contextlib import ExitStack

    from orchestrator.specs import StageSpec

    SubParsers = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Plan as `run` does and bring the weights of each stage to its host, so that the next run fetches
nothing. What was interrupted goes on where it stopped."""
_USAGE = "%(prog)s (--hosts FILE | --local N | --slurm) --model-id ID [options]"


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


def add_parser(subcommands: SubParsers, exits: str) -> None:
    """Add the subcommand; `exits` explains the exit codes."""
    parser = subcommands.add_parser(
        "fetch",
        help="bring each stage's weights to its host",
        usage=_USAGE,
        description=_ABOUT,
        epilog=exits,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_plan_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=main)


def main(parsed: argparse.Namespace) -> int:
    """Run the subcommand and return the exit code."""
    from orchestrator.command import finish

    options = options_from(PlanOptions, parsed)
    return finish(lambda hold: _fetch(options, hold), as_json=options.json)


async def _fetch(options: PlanOptions, hold: ExitStack) -> int:
    from orchestrator.command import put
    from orchestrator.config import surroundings
    from orchestrator.errand_run import run_errands
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
