"""Bring back the stages that were given up: a server outlives the fault of a night."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from orchestrator.failures import OpRejected, StageFailure
from orchestrator.stages import Stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait before a stage that was given up is tried again.

    Attributes:
        look_s: how often to look whether one was.
        first_s: before the first time; doubled each time.
        most_s: what it grows to.
    """

    look_s: float = 1.0
    first_s: float = 15.0
    most_s: float = 300.0


async def keep_alive(stages: Stages, patience: Patience | None = None) -> StageFailure:
    """Begin recovery anew for each stage that was given up, until one is lost for good.

    A request tries at once. But where /health keeps requests away from a server that has lost a
    stage, none comes any more, and nobody else would try.

    Returns:
        Why this pipeline will never answer again.
    """
    kept = patience or Patience()
    watches = [
        asyncio.create_task(_watch(stages, stage, kept)) for stage in range(len(stages.hosts))
    ]
    try:
        ended, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        return ended.pop().result()
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _watch(stages: Stages, stage: int, patience: Patience) -> StageFailure:
    """Return why the pipeline has ended, once it has."""
    pause_s = patience.first_s
    while True:
        await asyncio.sleep(patience.look_s)
        if stages.failure is not None:
            return stages.failure
        if stages.states[stage] != "lost":
            pause_s = patience.first_s
            continue
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, patience.most_s)
        # The pipeline tells the user of each attempt.
        with contextlib.suppress(StageFailure, OpRejected, ConnectionError):
            await stages.revive(stage)
