"""Whether tokens are guessed ahead, and the draft model that is started for that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from orchestrator.hosts import HostEntry
from orchestrator.pipeline_options import PipelineOptions
from orchestrator.setting import Setting
from orchestrator.specs import StageSpec
from orchestrator.speculation.draft_model import check_language, start_draft, warm_up
from orchestrator.speculation.speculator import Speculator, lacking
from orchestrator.stage_specs import Place, spec_of
from orchestrator.stages import Stages


class Speculation:
    """The choice for one pipeline.

    Args:
        options: of the pipeline.
        starting: the draft model, where one was asked for.
    """

    def __init__(self, options: PipelineOptions, starting: asyncio.Task[Stages] | None) -> None:
        self._options = options
        self._starting = starting

    async def of(self, pipeline: Stages) -> tuple[Speculator | None, str | None]:
        """Return what guesses for a pipeline, and a note where it cannot though it was asked for.

        Raises:
            DraftRefused: the draft model cannot guess for this one.
            StageFailure: it cannot be started.
        """
        asked = self._options.speculate
        if asked == "auto":
            asked = "off" if self._starting is None else "draft"
        lack = None if asked == "off" else lacking(pipeline)
        if asked == "off" or lack is not None:
            return None, lack
        if self._starting is None:
            return Speculator(pipeline), None
        draft = await self._starting
        await check_language(pipeline, draft, self._options.draft_model_id or "")
        return Speculator(pipeline, draft), None


@contextlib.asynccontextmanager
async def speculation_of(
    options: PipelineOptions, setting: Setting, specs: Sequence[StageSpec]
) -> AsyncIterator[Speculation]:
    """Start the draft model, if any, beside the stages, and end it with the block."""
    if options.draft_model_id is None:
        yield Speculation(options, None)
        return
    local_workers = 1 + sum(spec.transport == "local" for spec in specs)
    entry = HostEntry(line=0, device=options.draft_device, name="local, as the draft model")
    worker = replace(
        setting.worker,
        model_id=options.draft_model_id,
        revision=None,
        quantization=options.draft_quantization,
        memory_limit_bytes=None,
    )
    spec = spec_of(Place(entry, 0, 1), worker, setting.ways, local_workers=local_workers)
    starting = asyncio.create_task(start_draft(spec, setting.timeouts))
    warming = asyncio.create_task(_warm_up(starting))
    try:
        yield Speculation(options, starting)
    finally:
        warming.cancel()
        starting.cancel()
        await asyncio.wait({warming, starting})
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().aclose()


async def _warm_up(starting: asyncio.Task[Stages]) -> None:
    await asyncio.wait({starting})
    if not starting.cancelled() and starting.exception() is None:
        await warm_up(starting.result())
