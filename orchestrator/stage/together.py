"""Several stages at once: waited for together, and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from orchestrator.stage.client import StageClient

T = TypeVar("T")


async def at_once(works: Iterable[Coroutine[Any, Any, T]], *, grace_s: float = 0.0) -> list[T]:
    """Return the result of each; an error ends the others and is raised.

    Args:
        works: what to wait for.
        grace_s: how long the others may go on after the first error.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        if grace_s and tasks:
            _, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if others:
                await asyncio.wait(others, timeout=grace_s)
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def close_all(stages: Sequence[StageClient]) -> None:
    """End every stage, each by its ladder; a second cancellation ends them at once."""
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 1:
        # The second Ctrl-C came while the first was being obeyed: no ladder is wanted any more.
        for stage in stages:
            stage.kill()
    closing = [asyncio.create_task(stage.aclose()) for stage in stages]
    if not closing:
        return
    try:
        await asyncio.wait(closing)
    except asyncio.CancelledError:
        # A second Ctrl-C: each ladder goes to SIGKILL at once; that much is waited for.
        for task in closing:
            task.cancel()
        await asyncio.wait(closing)
        raise
    await asyncio.gather(*closing)
