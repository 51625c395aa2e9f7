"""What a pipeline says of each of its stages: it serves, is being brought back, or is lost."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.failures import StageFailure
from orchestrator.recovery.policy import NO_RECOVERY
from orchestrator.stages import Stages
from tests.support.recovery_lab import HASTY, QUICK, Watch, history_spec, inflict


def test_a_stage_that_is_started_again_is_recovering_until_it_serves() -> None:
    async def run() -> list[tuple[str, ...]]:
        watch, noticed = Watch(), asyncio.Event()
        seen: list[tuple[str, ...]] = []
        async with await Stages.start(
            [history_spec(stage, 2) for stage in range(2)],
            recorder=watch,
            timeouts=HASTY,
            policy=QUICK,
            on_notice=lambda text: noticed.set(),
        ) as stages:
            seen.append(stages.states)
            inflict("kill", watch.pids[1])
            await noticed.wait()
            seen.append(stages.states)
            await stages.forward("r", [1, 2], 0, None)
            await watch.recovered(1)
            await stages.tokenize("r", "text")
            seen.append(stages.states)
        return seen

    assert asyncio.run(run()) == [("ready", "ready"), ("ready", "recovering"), ("ready", "ready")]


def test_a_stage_that_nobody_starts_again_is_lost() -> None:
    async def run() -> tuple[str, ...]:
        watch = Watch()
        async with await Stages.start(
            [history_spec(stage, 2) for stage in range(2)],
            recorder=watch,
            timeouts=HASTY,
            policy=NO_RECOVERY,
        ) as stages:
            inflict("kill", watch.pids[1])
            with pytest.raises(StageFailure):
                await stages.forward("r", [1, 2], 0, None)
            return stages.states

    assert asyncio.run(run()) == ("ready", "lost")
