"""A server lives on when a stage was given up: it says so, and brings it back unasked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from orchestrator.recovery.policy import NO_RECOVERY
from orchestrator.serve.health import Health
from orchestrator.serve.revival import Patience, keep_alive
from orchestrator.stages import Stages
from tests.support.recovery_lab import HASTY, QUICK, Watch, history_spec, inflict

PATIENCE = Patience(look_s=0.02, first_s=0.02, most_s=0.05)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


def test_a_stage_that_was_given_up_comes_back_without_a_request(tmp_path: Path) -> None:
    doom = tmp_path / "doom"

    async def run() -> list[tuple[str, str]]:
        watch, seen = Watch(), []
        async with await Stages.start(
            [history_spec(0, 2), history_spec(1, 2, model_id=f"doomed:{doom}")],
            recorder=watch,
            timeouts=HASTY,
            policy=QUICK,
        ) as stages:
            doom.touch()
            inflict("kill", watch.pids[1])
            await until(lambda: stages.states[1] == "lost")
            health = (await Health(stages).look())[1]
            seen.append((health.state, (health.trouble or "").partition(" while")[0]))
            living = asyncio.create_task(keep_alive(stages, PATIENCE))
            tried = len(watch.recoveries)
            await until(lambda: len(watch.recoveries) > tried)  # And it fails once more.
            doom.unlink()
            await until(lambda: stages.states[1] == "ready")
            seen.append(((await Health(stages).look())[1].state, str(living.done())))
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
        return seen

    assert asyncio.run(run()) == [
        ("lost", "stage 1 on local was killed by SIGKILL"),
        ("ready", "False"),
    ]


def test_a_stage_that_is_lost_for_good_ends_the_watch() -> None:
    async def run() -> str:
        watch = Watch()
        specs = [history_spec(stage, 2) for stage in range(2)]
        async with await Stages.start(
            specs, recorder=watch, timeouts=HASTY, policy=NO_RECOVERY
        ) as stages:
            inflict("kill", watch.pids[0])
            return str(await keep_alive(stages, PATIENCE))

    assert asyncio.run(run()).startswith("stage 0 on local was killed by SIGKILL")


def test_a_stage_that_does_not_answer_is_silent_long_before_it_is_lost() -> None:
    async def run() -> list[str]:
        watch = Watch()
        specs = [history_spec(stage, 2) for stage in range(2)]
        async with await Stages.start(
            specs, recorder=watch, timeouts=HASTY, policy=NO_RECOVERY
        ) as stages:
            inflict("stop", watch.pids[1])
            found = [stage.state for stage in await Health(stages, answer_s=0.3).look()]
            inflict("kill", watch.pids[1])
            return found

    assert asyncio.run(run()) == ["ready", "silent"]
