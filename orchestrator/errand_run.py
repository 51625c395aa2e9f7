"""Errands as a command runs them: shown on stderr, ended by Ctrl-C in order."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence

from orchestrator.bundle.records import Recorder
from orchestrator.errand import Errands
from orchestrator.interruption import Interruption
from orchestrator.specs import StageSpec
from orchestrator.status import start_display
from orchestrator.stderr import say
from orchestrator.timeouts import Timeouts
from worker.protocol.events import Event

# How hosts are asked: the workers, their deadlines, what takes the facts -> what each told.
RunErrands = Callable[
    [Sequence[StageSpec], Timeouts, Recorder | None], Awaitable[list[tuple[Event, ...]]]
]


async def run_errands(
    specs: Sequence[StageSpec], timeouts: Timeouts, recorder: Recorder | None = None
) -> list[tuple[Event, ...]]:
    """Run the workers and return what each told; see `Errands.run`.

    Raises:
        StageFailure: the first that was noticed.
        Interrupted: a signal came; the workers have been ended.
    """
    with start_display(specs, sys.stderr) as display, Interruption(say) as interruption:
        errands = Errands(specs, recorder=recorder, timeouts=timeouts, on_status=display.update)
        interruption.harder = errands.kill
        return await errands.run()


async def run_errands_quietly(
    specs: Sequence[StageSpec], timeouts: Timeouts, recorder: Recorder | None = None
) -> list[tuple[Event, ...]]:
    """Run the workers for a program that shows nothing and has its own way with signals.

    Raises:
        StageFailure: the first that was noticed.
    """
    return await Errands(specs, recorder=recorder, timeouts=timeouts).run()
