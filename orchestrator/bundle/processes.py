"""The processes of a run, each with its own clock laid on the orchestrator's.

A host's clock may be hours off, so what a worker tells of the time of day is not used. Its uptime
is: an event is received some time after it was written, never before, so the smallest difference
of the two among all events of a process is when it started, but for the fastest delivery.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.bundle.lookup import Seen, events
from orchestrator.bundle.reader import Bundle
from worker.protocol.events import Event, Starting


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a stage.

    Attributes:
        number: 1 for the first of the stage.
        seen: its events, in order.
        started_ms: when it started, by the orchestrator's clock.
    """

    stage: int
    host: str
    number: int
    seen: tuple[Seen[Event], ...]
    started_ms: float

    @property
    def hello(self) -> Seen[Event] | None:
        """Its first line; None where the bundle has lost it."""
        return self.seen[0] if isinstance(self.seen[0].event, Starting) else None

    def at_ms(self, seen: Seen[Event]) -> float:
        """Return when an event was written, by the orchestrator's clock."""
        return self.started_ms + seen.uptime_ms


def processes_of(bundle: Bundle) -> tuple[Process, ...]:
    """Return the processes by stage and, within it, by time."""
    stages: dict[int, list[list[Seen[Event]]]] = {}
    for seen in events(bundle, Event):
        processes = stages.setdefault(seen.stage, [])
        if isinstance(seen.event, Starting) or not processes:
            processes.append([])
        processes[-1].append(seen)
    return tuple(
        Process(stage, told[0].host, number, tuple(told), _started_ms(told))
        for stage, processes in sorted(stages.items())
        for number, told in enumerate(processes, start=1)
    )


def _started_ms(told: list[Seen[Event]]) -> float:
    return min(seen.wall_ms - seen.uptime_ms for seen in told)
