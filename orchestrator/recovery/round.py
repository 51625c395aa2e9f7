"""One round of attempts to bring a lost stage back."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.bundle.records import RecoveryRecord
from orchestrator.failures import Hung, StageFailure
from orchestrator.recovery.crew import Crew
from orchestrator.recovery.likeness import check_likeness, pinned
from orchestrator.recovery.replay import Replay, Replayed
from orchestrator.recovery.spares import Places, SpareSlot
from orchestrator.recovery.words import (
    back_notice,
    doing_words,
    first_notice,
    given_up,
    left_behind,
    lost_words,
    restart_notice,
)
from orchestrator.specs import StageSpec
from orchestrator.stage import StageClient
from worker.protocol.exits import ExitCode

if TYPE_CHECKING:
    from orchestrator.recovery.seat import Seat


@dataclass(slots=True)
class Attempt:
    """One start of a lost stage, as far as it has come."""

    spec: StageSpec
    number: int
    wall_ms: float
    begun_s: float
    restart_s: float | None = None
    replay_s: float | None = None
    replayed: Replayed = Replayed()


class Round:
    """Restart, compare, replay, seat; until it serves or the attempts are used up.

    Args:
        seat: the place that is empty.
        crew: what the seats share.
        replay: rebuilds the KV caches of this stage.
        failure: why the stage is lost.
        moment: when it was lost, for people.
    """

    def __init__(
        self, seat: Seat, crew: Crew, replay: Replay, failure: StageFailure, moment: str
    ) -> None:
        self._seat = seat
        self._crew = crew
        self._replay = replay
        self._first = failure
        self._moment = moment
        self._home = seat.spec
        self._has_served = seat.ready is not None
        self._places = Places(crew.bench, failure, has_served=self._has_served)
        self._elsewhere: list[StageFailure] = []
        self._lost_s = time.perf_counter()

    async def run(self) -> StageFailure | None:
        """Return None once the stage serves, or the failure to tell to all who wait for it."""
        newest, made = self._first, 0
        try:
            await self._clear_away(self._seat.client)
            while self._seat.attempts < self._crew.policy.most_attempts:
                there_is, slot = self._places.next()
                if not there_is:
                    break
                self._seat.attempts, made = self._seat.attempts + 1, made + 1
                failure = await self._try(slot, newest)
                if failure is None:
                    self._places.settled()
                    return None
                self._places.failed(failure)
                if slot is not None:
                    self._elsewhere.append(failure)
                newest, self._moment = failure, f"while {failure.scene.phase}"
        finally:
            self._places.give_up()
        ended = given_up(
            self._first, newest, self._seat.attempts, made=made, elsewhere=self._elsewhere
        )
        self._seat.attempts = 0  # The next op begins a round of its own.
        return ended

    async def _try(self, slot: SpareSlot | None, newest: StageFailure) -> StageFailure | None:
        """Make one attempt; return why it failed, or None."""
        spec = self._home if slot is None else slot.spec_for(self._home)
        lost = self._seat.ready
        spec = spec if lost is None else pinned(spec, lost)
        number = self._seat.attempts
        pause_s = self._pause_s(slot, newest, number)
        self._tell_lost(spec, newest, number, pause_s)
        await asyncio.sleep(pause_s)
        attempt = Attempt(spec, number, time.time_ns() / 1e6, time.perf_counter())
        client = self._seat.hire(spec)
        try:
            await self._bring_up(client, attempt)
        except StageFailure as failure:
            await self._clear_away(client)
            self._record(attempt, newest, failure)
            return failure
        self._record(attempt, newest, None)
        self._tell_back(attempt, moved=slot is not None)
        return None

    def _tell_lost(
        self, spec: StageSpec, newest: StageFailure, number: int, pause_s: float
    ) -> None:
        home, lost = self._home, self._seat.ready
        notice = restart_notice(
            lost_words(newest, self._moment),
            number,
            self._crew.policy.most_attempts,
            doing=doing_words(home.host, spec.host, newest, has_served=self._has_served),
            pause_s=pause_s,
            positions=self._crew.history.positions(home.stage),
        )
        # A local one is dead by now; a signal does not go over a connection.
        is_away = home.transport != "local"
        if is_away and newest is self._first and isinstance(newest, Hung) and lost is not None:
            notice += left_behind(newest, lost.pid)
        self._crew.on_notice(notice)

    def _pause_s(self, slot: SpareSlot | None, newest: StageFailure, number: int) -> float:
        pause_s = self._crew.policy.pause_s(number)
        lease_s = self._home.options.lease_s
        if slot is None and lease_s is not None and newest.exit_code == ExitCode.OUT_OF_MEMORY:
            # The lost worker may still hold the memory, behind a dead link, until its lease ends.
            return max(pause_s, lease_s)
        return pause_s

    async def _bring_up(self, client: StageClient, attempt: Attempt) -> None:
        """Start the stage, compare it with the lost one, replay, and seat it."""
        ready = await client.start()
        attempt.restart_s = time.perf_counter() - attempt.begun_s
        lost = self._seat.ready
        if lost is not None:
            bits_matter = bool(self._crew.history.rids(self._home.stage))
            check_likeness(attempt.spec, lost, ready, bits_matter=bits_matter)
        attempt.replayed = await self._replay.all(client)
        attempt.replay_s = time.perf_counter() - attempt.begun_s - attempt.restart_s
        self._seat.take(client, attempt.spec, ready)

    async def _clear_away(self, client: StageClient) -> None:
        """End a process that is of no use any more; when cancelled, the pipeline does it."""
        client.kill()
        await client.aclose()
        self._crew.dismiss(client)

    def _record(self, attempt: Attempt, reason: StageFailure, failure: StageFailure | None) -> None:
        def ms(duration_s: float | None) -> float | None:
            return None if duration_s is None else round(duration_s * 1e3, 3)

        self._crew.note_attempt(
            RecoveryRecord(
                stage=self._home.stage,
                host=self._home.host,
                new_host=attempt.spec.host,
                attempt=attempt.number,
                most_attempts=self._crew.policy.most_attempts,
                reason=reason.sentence,
                wall_ms=attempt.wall_ms,
                restart_ms=ms(attempt.restart_s),
                replay_ms=ms(attempt.replay_s),
                requests=attempt.replayed.requests,
                tokens=attempt.replayed.positions,
                ok=failure is None,
                error=None if failure is None else failure.sentence,
            )
        )

    def _tell_back(self, attempt: Attempt, *, moved: bool) -> None:
        stage, host, total_s = self._home.stage, self._home.host, time.perf_counter() - self._lost_s
        new_host = attempt.spec.host if moved else None
        if not self._has_served:
            self._crew.on_notice(first_notice(stage, host, new_host, total_s=total_s))
            return
        self._crew.on_notice(
            back_notice(
                stage,
                host,
                new_host,
                total_s=total_s,
                restart_s=attempt.restart_s or 0.0,
                replay_s=attempt.replay_s or 0.0,
            )
        )
