"""End a process step by step, each step for a bounded time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from orchestrator.timeouts import Timeouts
from orchestrator.transport.base import PipeClosed, StageProcess

SHUTDOWN_ID = "stageline:shutdown"


async def descend(
    process: StageProcess,
    ended: asyncio.Task[None],
    timeouts: Timeouts,
    ask: Callable[[StageProcess], None],
) -> None:
    """Go down the ladder as far as SIGTERM; the caller owes SIGKILL if `ended` is not done.

    Args:
        process: the process to end.
        ended: done once the process is gone.
        timeouts: how long each rung holds.
        ask: sends the `shutdown` op, where the stage can take one.
    """
    with contextlib.suppress(PipeClosed):
        ask(process)
    process.close_stdin()
    await asyncio.wait({ended}, timeout=timeouts.exit_s)
    if not ended.done():
        process.terminate()
        await asyncio.wait({ended}, timeout=timeouts.terminate_s)
