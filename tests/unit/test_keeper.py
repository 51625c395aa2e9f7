"""How long a stage may be silent: longer where a long line may still be on its way to it."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from orchestrator.stage.keeper import keep
from orchestrator.stage.notes import StageNotes
from orchestrator.stage.pending import PendingOp, PendingOps
from orchestrator.timeouts import Timeouts
from orchestrator.transport.base import StageProcess
from tests.support.stages import stub_spec
from worker.protocol.ops import Tokenize

TIMEOUTS = Timeouts(silence_s=0.2, idle_silence_s=0.3, tick_s=0.02)


class Still:
    """A link on which nothing moves."""

    bytes_received = 0
    bytes_unsent = 0


@pytest.mark.parametrize(
    ("in_flight_bytes", "limit_s"),
    # At 125 kB/s; a line that is longer than what pipes hold moves where it can be seen.
    [(None, 0.3), (100, 0.2), (50_000, 0.6)],
)
def test_silence_is_measured_against_what_is_in_flight(
    in_flight_bytes: int | None, limit_s: float
) -> None:
    async def run() -> tuple[float, float]:
        notes = StageNotes(stub_spec(), lambda status: None, lambda event: None)
        notes.enter("ready")
        pending = PendingOps()
        if in_flight_bytes is not None:
            op = Tokenize(request_id="r", prompt="a")
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            pending.add(PendingOp(op, future, in_flight_bytes))
        begun_s = time.monotonic()
        process = cast(StageProcess, Still())
        passed_s = await keep(process, notes, pending, TIMEOUTS, lambda: None)
        return passed_s, time.monotonic() - begun_s

    passed_s, took_s = asyncio.run(run())
    assert (passed_s, limit_s <= took_s < limit_s + 2) == (limit_s, True)
