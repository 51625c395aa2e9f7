"""Spare hosts, and where a lost stage is started next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.failures import HostUnreachable, SpawnFailed, StageFailure
from orchestrator.specs import StageSpec
from worker.protocol.exits import ExitCode


@dataclass(frozen=True, slots=True)
class SpareSlot:
    """Room for one stage on a host that is kept aside.

    Attributes:
        host: label of the host.
        spec_for: makes of a lost stage's spec the one that starts it on this host.
    """

    host: str
    spec_for: Callable[[StageSpec], StageSpec]


class Bench:
    """The spare slots that nobody uses; shared by all stages."""

    def __init__(self, slots: Sequence[SpareSlot]) -> None:
        self._free = list(slots)

    def __bool__(self) -> bool:
        return bool(self._free)

    def take(self, *, but: Sequence[SpareSlot]) -> SpareSlot | None:
        """Take the first slot that is free and is not one of `but`."""
        slot = next((slot for slot in self._free if not any(slot is one for one in but)), None)
        if slot is not None:
            self._free.remove(slot)
        return slot

    def put_back(self, slot: SpareSlot) -> None:
        """Give a slot back."""
        self._free.append(slot)


class Places:
    """Where to start one lost stage, attempt by attempt, in one round.

    Its own host comes first where the process died or hung. A spare comes first where the host
    cannot be reached, and once a restart there has failed. A spare that failed is not asked again.

    Args:
        bench: the spare slots.
        failure: why the stage is lost.
        has_served: whether the stage has served there; then it fits there, and what does not pass
            on that host may be otherwise elsewhere.
    """

    def __init__(self, bench: Bench, failure: StageFailure, *, has_served: bool) -> None:
        self._bench = bench
        self._has_served = has_served
        self._at_home = failure
        self._home_failed = False
        self._failed: list[SpareSlot] = []
        self._taken: SpareSlot | None = None

    def next(self) -> tuple[bool, SpareSlot | None]:
        """Return whether there is a place, and the spare slot that it is; None is its own host."""
        away_first = self._home_failed or not self._home_may_pass
        away_first = away_first or isinstance(self._at_home, HostUnreachable)
        if away_first and self._helps_to_move:
            self._taken = self._bench.take(but=self._failed)
            if self._taken is not None:
                return True, self._taken
        return self._home_may_pass, None

    def failed(self, failure: StageFailure) -> None:
        """Note that the attempt at the newest place has failed."""
        if self._taken is not None:
            self._failed.append(self._taken)
            self._bench.put_back(self._taken)
            self._taken = None
        else:
            self._at_home, self._home_failed = failure, True

    def give_up(self) -> None:
        """Give a slot back that was taken, when the attempt there was broken off."""
        if self._taken is not None:
            self._bench.put_back(self._taken)
            self._taken = None

    def settled(self) -> None:
        """Keep the newest place."""
        self._taken = None

    @property
    def _home_may_pass(self) -> bool:
        failure = self._at_home
        # What has fitted there will fit again once the lost worker's memory is free.
        lacks_memory = failure.exit_code == ExitCode.OUT_OF_MEMORY and self._has_served
        return failure.may_pass or lacks_memory

    @property
    def _helps_to_move(self) -> bool:
        failure = self._at_home
        if failure.may_pass or isinstance(failure, (HostUnreachable, SpawnFailed)):
            return True
        return self._has_served and failure.exit_code != ExitCode.USAGE
