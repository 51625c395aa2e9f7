"""Every fault on every stage at every moment, with requests that must not notice it."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.links.names import STAR
from orchestrator.recovery import RecoveryPolicy
from orchestrator.specs import StageSpec
from orchestrator.stages import Stages
from orchestrator.timeouts import Timeouts
from tests.support.recovery_lab import (
    FAULTS,
    HASTY,
    MOMENTS,
    QUICK,
    Ask,
    Cell,
    Outcome,
    Watch,
    answers,
    held_back,
    history_spec,
    linked,
    play,
    play_load,
)

ASKS = tuple(Ask(count, sampled) for sampled in (False, True) for count in (1, 8))
Expected = Callable[[Ask], Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Workers to play the matrix on.

    Attributes:
        spec: makes the spec of a stage.
        expected: the tokens of undisturbed requests.
        holds: whether a worker's first start can be made to wait while it loads.
        num_stages: first, middle and last.
        links: as `--links`.
    """

    spec: Callable[[int, int], StageSpec]
    expected: Expected
    holds: bool
    timeouts: Timeouts = HASTY
    # On a busy machine a stage that is only slow may be taken for one that hangs.
    policy: RecoveryPolicy = replace(QUICK, most_attempts=6)
    num_stages: int = 3
    links: str = STAR

    def specs(self, fault: str) -> list[StageSpec]:
        """Return the stages, behind links where those are to be cut."""
        plain = [self.spec(stage, self.num_stages) for stage in range(self.num_stages)]
        return [linked(spec) for spec in plain] if fault == "cut" else plain


def history_bench() -> Bench:
    """Workers that start in a moment and whose answers hold all that they were sent."""
    return Bench(spec=history_spec, expected=lambda ask: ask.expected(3), holds=True)


async def undisturbed(bench: Bench) -> Expected:
    """Return what the bench's own workers answer when nothing happens."""
    watch = Watch()
    async with await Stages.start(
        bench.specs(""), recorder=watch, timeouts=bench.timeouts
    ) as pipeline:
        found = [(ask, await answers(pipeline, watch, ask.requests())) for ask in ASKS]
    return lambda ask: next(tokens for known, tokens in found if known == ask)


async def play_matrix(
    bench: Bench,
    *,
    faults: Sequence[str] = FAULTS,
    moments: Sequence[str] = MOMENTS,
    asks: Sequence[Ask] = ASKS,
    at_once: int = 4,
    on_outcome: Callable[[Cell, Outcome], None] = lambda cell, outcome: None,
) -> dict[Cell, Outcome]:
    """Play all cells, `at_once` pipelines side by side; return what came of each.

    The cells of one fault and one stage share a pipeline, one after another; those of a fault in
    loading share one of their own.
    """
    outcomes: dict[Cell, Outcome] = {}
    room = asyncio.Semaphore(at_once)

    def note(cell: Cell, outcome: Outcome) -> None:
        outcomes[cell] = outcome
        on_outcome(cell, outcome)

    async def lane(fault: str, stage: int) -> None:
        watch = Watch()
        serving = [moment for moment in moments if moment != "load"]
        async with (
            room,
            await Stages.start(
                bench.specs(fault),
                recorder=watch,
                timeouts=bench.timeouts,
                policy=bench.policy,
                links=bench.links,
            ) as pipeline,
        ):
            for moment, ask in itertools.product(serving, asks):
                cell = Cell(fault, stage, moment, ask)
                note(cell, await play(pipeline, watch, cell, bench.expected(ask)))

    async def start(fault: str, stage: int) -> None:
        cells = [Cell(fault, stage, "load", ask) for ask in asks]
        specs = bench.specs(fault)
        with tempfile.TemporaryDirectory() as folder:
            if bench.holds:
                specs = held_back(specs, stage, Path(folder))
            async with room:
                played = await play_load(
                    specs,
                    cells,
                    [bench.expected(ask) for ask in asks],
                    timeouts=bench.timeouts,
                    policy=bench.policy,
                    links=bench.links,
                )
        for cell, outcome in zip(cells, played, strict=True):
            note(cell, outcome)

    async with asyncio.TaskGroup() as group:
        for fault, stage in itertools.product(faults, range(bench.num_stages)):
            if set(moments) - {"load"}:
                group.create_task(lane(fault, stage))
            if "load" in moments:
                group.create_task(start(fault, stage))
    return outcomes


def table(outcomes: dict[Cell, Outcome]) -> str:
    """Return the outcomes as a Markdown table: a row for each fault, stage and moment."""
    rows = dict.fromkeys((cell.fault, cell.stage, cell.moment) for cell in outcomes)
    asks = list(dict.fromkeys(cell.ask for cell in outcomes))
    heads = [f"{'sampled' if ask.sampled else 'greedy'} x{ask.count}" for ask in asks]
    lines = [f"| fault | stage | moment | {' | '.join(heads)} |", "|---" * (3 + len(asks)) + "|"]
    for fault, stage, moment in sorted(rows):
        cells = [_text(outcomes.get(Cell(fault, stage, moment, ask))) for ask in asks]
        lines.append(f"| {fault} | {stage} | {moment} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _text(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not run"
    if outcome.recovery_ms is None:
        return "no fault"
    took = f"{outcome.recovery_ms / 1e3:.2f} s"
    return f"ok {took}" if outcome.same else f"OTHER TOKENS {took}"
