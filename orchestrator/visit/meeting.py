"""Log in on a host until its Python answers, with no more logins at once than a server takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from orchestrator.specs import StageSpec
from orchestrator.stage.gate import StartGate, login_pauses
from orchestrator.timeouts import Timeouts
from orchestrator.visit.departure import VisitFailed
from orchestrator.visit.greeting import Interpreter
from orchestrator.visit.visit import Visit


@asynccontextmanager
async def met(
    spec: StageSpec, python: Sequence[str], limit_s: float, gate: StartGate
) -> AsyncIterator[tuple[Visit, Interpreter]]:
    """Hold a visit whose Python has answered; a login that the server drops is tried again.

    Args:
        spec: where.
        python: words that start Python there.
        limit_s: until it answers, from the first login; waiting for a turn is no part of it.
        gate: bounds the logins of all visits together.

    Raises:
        VisitFailed: it does not answer.
    """
    pauses, until_s = login_pauses(Timeouts()), 0.0
    dropped: VisitFailed | None = None
    while True:
        async with AsyncExitStack() as hold:
            try:
                async with gate.login(spec):
                    until_s = until_s or time.monotonic() + limit_s
                    visit = await hold.enter_async_context(Visit(spec, python))
                    left_s = max(0.0, until_s - time.monotonic())
                    interpreter = await visit.meet(max(round(left_s, 1), 0.1))
            except VisitFailed as failed:
                if dropped is not None and time.monotonic() >= until_s:
                    raise dropped from None  # What was dropped took the time, not this one.
                pause_s = next(pauses, None)
                if not failed.dropped or pause_s is None:
                    raise
                if time.monotonic() + pause_s > until_s:
                    raise
                dropped = failed
            else:
                yield visit, interpreter
                return
        await asyncio.sleep(pause_s)
