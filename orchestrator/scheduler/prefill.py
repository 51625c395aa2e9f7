"""A prompt in chunks, several of them under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from orchestrator.chunk import Chunk
from orchestrator.scheduler.job import Job
from worker.protocol.ops import SampledReply


async def run_chunks(
    chunks: Sequence[Chunk],
    make: Callable[[Chunk], Job],
    run: Callable[[Job], Coroutine[Any, Any, SampledReply]],
    *,
    most: int,
) -> SampledReply:
    """Run chunks that follow each other; return the last one's reply.

    Args:
        chunks: of one request. Each is given to the first stage when the one before has left it.
        make: makes a job of one.
        run: takes a job through the stages.
        most: how many may be under way; each holds memory, here and in the pipes.

    Raises:
        OpRejected, StageFailure, ConnectionError: the first error of any; the others are given up.
    """
    under_way: set[asyncio.Task[SampledReply]] = set()
    try:
        for chunk in chunks[:-1]:
            job = make(chunk)
            under_way.add(asyncio.create_task(run(job)))
            await job.passed(0)
            if job.error is not None:
                raise job.error
            while len(under_way) >= most:
                ended, under_way = await asyncio.wait(
                    under_way, return_when=asyncio.FIRST_COMPLETED
                )
                for task in ended:
                    task.result()
        return await run(make(chunks[-1]))
    finally:
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.gather(*under_way, return_exceptions=True)
