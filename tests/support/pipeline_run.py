"""An orchestrator to be killed: prints its workers' pids once it is where the argument says."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from orchestrator.bundle.records import NoRecorder
from orchestrator.stages import Stages
from tests.support.stages import PATIENT, odd_spec
from worker.protocol.codec import EventLine, decode_worker_line
from worker.protocol.events import Importing, Starting


class Watch(NoRecorder):
    """Learn the workers' pids, and when they are where the test wants them."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.importing = 0
        self.hanging = asyncio.Event()
        self.loading = asyncio.Event()

    def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
        """Look at the events."""
        read = decode_worker_line(line)
        if isinstance(read, EventLine) and isinstance(read.event, Starting):
            self.pids.append(read.event.pid)
        if isinstance(read, EventLine) and isinstance(read.event, Importing):
            self.importing += 1
            if self.importing == 2:
                self.loading.set()

    def stderr(self, stage: int, host: str, text: bytes) -> None:
        """Look for what `odd_worker` says."""
        if b"hanging" in text:
            self.hanging.set()


async def run(when: str) -> None:
    """Get there, tell, wait to be killed."""
    watch = Watch()
    specs = [odd_spec(0, 2), odd_spec(1, 2)]
    if when == "loading":
        specs = [
            replace(spec, options=replace(spec.options, model_id="load-hangs")) for spec in specs
        ]
        starting = asyncio.ensure_future(Stages.start(specs, recorder=watch, timeouts=PATIENT))
        await watch.loading.wait()
        tell(watch.pids)
        await starting
    async with await Stages.start(specs, recorder=watch, timeouts=PATIENT) as pipeline:
        if when == "busy":
            asking = asyncio.ensure_future(pipeline.tokenize("r", "hang"))
            await watch.hanging.wait()
            tell(watch.pids)
            await asking
        tell(watch.pids)
        await asyncio.Event().wait()


def tell(pids: list[int]) -> None:
    """Print the pids on one line."""
    print(*pids, flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
