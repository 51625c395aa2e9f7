"""End a process step by step, each step for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orchestrator.timeouts import Timeouts
from orchestrator.transport.base import StageProcess

SHUTDOWN_ID = "stageline:shutdown"


async def descend(
    process: StageProcess,
    ended: asyncio.Task[None],
    timeouts: Timeouts,
    ask: Callable[[StageProcess], Callable[[], bool]],
) -> None:
    """Go down the ladder as far as SIGTERM; the caller owes SIGKILL if `ended` is not done.

    A stage that does not answer while the first rung begins is not waited for any longer: it is
    stopped, or cannot hear. What it wrote before it was asked, and is read only now, is no answer.

    Args:
        process: the process to end.
        ended: done once the process is gone.
        timeouts: how long each rung holds.
        ask: sends what is answered at once, and the `shutdown` op, where the stage can take them;
            returns what tells whether it has answered.
    """
    has_answered = ask(process)
    process.close_stdin()
    first_s = min(timeouts.mute_s, timeouts.exit_s)
    await asyncio.wait({ended}, timeout=first_s)
    is_mute = not has_answered()
    if not ended.done() and not is_mute:
        await asyncio.wait({ended}, timeout=timeouts.exit_s - first_s)
    if not ended.done():
        process.terminate()
        limit_s = min(timeouts.mute_s, timeouts.terminate_s) if is_mute else timeouts.terminate_s
        await asyncio.wait({ended}, timeout=limit_s)
