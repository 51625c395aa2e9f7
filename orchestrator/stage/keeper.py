"""Ping a stage, and notice when nothing comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from orchestrator.stage.notes import StageNotes
from orchestrator.stage.pending import PendingOps
from orchestrator.stage.silence import Silence
from orchestrator.timeouts import Timeouts
from orchestrator.transport.base import StageProcess

PING_ID = "stageline:ping"
# Of a long line, pipes, ssh and TCP take so much at once that nothing seems to move while it is on
# its way, and pings wait behind it. The slowest link that is provided for, 1 Mbit/s, gets its time.
_HIDDEN_BYTES = 4 << 20
_SLOWEST_BYTES_PER_S = 125_000
# Unanswered pings; more would only tell again what silence tells.
_MOST_PINGS = 10


async def keep(
    process: StageProcess,
    notes: StageNotes,
    pending: PendingOps,
    timeouts: Timeouts,
    ping: Callable[[], None],
) -> float:
    """Ping until the stage has been silent for too long; return the limit that it passed.

    A worker's reader thread answers pings also while an op runs, so silence means that the
    process is stopped, the host is overwhelmed or the link is dead. Pings every `tick_s` while an
    op is in flight keep TCP from falling back to slow start (2.7 times as fast at 50 ms RTT).

    Args:
        ping: sends a ping.

    Raises:
        PipeClosed: the stage does not read any more.
    """
    silence = Silence(5 * timeouts.tick_s)
    pinged_s, was_busy = time.monotonic(), False
    while True:
        await asyncio.sleep(timeouts.tick_s)
        silence.observe(process.bytes_received, process.bytes_unsent)
        if notes.phase == "connecting":
            silence.reset()  # Nothing is sent before hello; hello has a deadline of its own.
            continue
        busy = pending.oldest is not None
        if busy and not was_busy:
            silence.reset()
        was_busy = busy
        under_way_s = min(pending.sent_bytes, _HIDDEN_BYTES) / _SLOWEST_BYTES_PER_S
        limit_s = timeouts.silence_s + under_way_s if busy else timeouts.idle_silence_s
        if silence.silent_s > limit_s:
            return round(limit_s, 1)
        now_s = time.monotonic()
        if busy or now_s - pinged_s >= timeouts.idle_ping_s:
            pinged_s = now_s
            # A ping behind a long line that is still being sent would tell nothing.
            if not process.bytes_unsent and pending.count_of(PING_ID) < _MOST_PINGS:
                ping()
