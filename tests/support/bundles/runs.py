"""Runs that came to an end of their own, and what is odd about them."""

from __future__ import annotations

from orchestrator.bundle.records import RecoveryRecord, RequestRecord
from tests.support.bundles.run import Run
from tests.support.bundles.tape import T0_MS
from worker.protocol.events import Exiting, UnknownEvent


def finished(run: Run) -> None:
    run.start()
    run.generate()
    run.writer.request(
        RequestRecord(
            rid="r1",
            wall_ms=T0_MS + 2020,
            prompt_tokens=5,
            completion_tokens=3,
            finish_reason="length",
            ttft_ms=38,
            duration_ms=114,
            decode_tokens_per_s=26.3,
        )
    )
    for stage in (0, 1):
        run.event(stage, Exiting(code=0, reason="shutdown", requests_served=3))
        run.ended(stage, code=0, expected=True)
    run.close(0)


def killed_orchestrator(run: Run) -> None:
    run.start()
    run.generate()
    run.close(None)
    events = run.path / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-40])


def interrupted(run: Run) -> None:
    run.start()
    run.ended(0, signal="SIGKILL", expected=True)
    run.close(130)


def killed_at_the_end(run: Run) -> None:
    run.start()
    run.ended(0, signal="SIGKILL", expected=True)
    run.close(0)


def slow_stage(run: Run) -> None:
    run.start()
    for _ in range(6):
        run.op(0, "decode_step")
        run.op(1, "forward_and_sample", own_ms=120)
    run.close(0)


def slow_link(run: Run) -> None:
    run.start()
    for _ in range(6):
        run.op(0, "decode_step")
        run.op(1, "forward_and_sample", wire_ms=90)
    run.close(0)


def clock_off(run: Run) -> None:
    run.clock_off_ms[1] = -2 * 3_600_000
    run.start()
    run.close(0)


def recovered(run: Run) -> None:
    run.start()
    run.generate()
    run.fail(1, "crashed", "was killed by SIGKILL while idle", "idle")
    run.ended(1, signal="SIGKILL")
    lost_ms = run.now_ms
    run.writer.recovery(
        RecoveryRecord(
            stage=1,
            host="beta",
            new_host="gamma",
            attempt=1,
            most_attempts=3,
            reason="stage 1 on beta was killed by SIGKILL while idle",
            wall_ms=T0_MS + lost_ms,
            restart_ms=900,
            replay_ms=100,
            requests=1,
            tokens=7,
            ok=True,
        )
    )
    run.at(lost_ms + 1100).close(0)


def newer_version(run: Run) -> None:
    """What a later version may write: kinds, fields and files that this one does not know."""
    run.start()
    run.event(0, UnknownEvent(fields={"event": "pp_telepathy", "strength": 11}))
    run.fail(1, "abducted", "was taken away", "levitating")
    run.close(6, "stage 1 on beta was taken away")
    run.edit("manifest.json", {"format": 99, "stages": "none", "mood": "fine"})
    (run.path / "aliens.jsonl").write_text("{}\n")
