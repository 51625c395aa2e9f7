"""Find things in a bundle that was read: events by kind, the state of a stage at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.records import ExitRecord
from worker.protocol.codec import EventLine
from worker.protocol.events import Event, Starting, UnknownEvent
from worker.protocol.ready import Ready

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Seen(Generic[E]):
    """An event, whose it is and when it was received; `told_ms` is by its host's own clock."""

    event: E
    stage: int
    host: str
    wall_ms: float
    uptime_ms: float
    where: str
    after_gap: bool
    told_ms: float = 0.0


def events(bundle: Bundle, kind: type[E], stage: int | None = None) -> Iterator[Seen[E]]:
    """Yield the events of a class (`Event` for all), of one stage or of every, in order."""
    for kept in bundle.lines:
        line = kept.value
        message = line.message
        if not isinstance(message, EventLine) or not isinstance(message.event, kind):
            continue
        if stage is None or line.stage == stage:
            yield Seen(
                message.event,
                line.stage,
                line.host,
                line.wall_ms,
                message.envelope.uptime_ms,
                kept.where,
                kept.after_gap,
                message.envelope.wall_ms,
            )


def kind_of(event: Event) -> str:
    """Return the name of an event, also of one this version does not know."""
    return str(event.fields.get("event")) if isinstance(event, UnknownEvent) else event.kind


def ready_of(bundle: Bundle, stage: int) -> Ready | None:
    """Return the newest ready line of a stage."""
    found = [
        kept.value.message
        for kept in bundle.lines
        if kept.value.stage == stage and isinstance(kept.value.message, Ready)
    ]
    return found[-1] if found else None


def marks(bundle: Bundle) -> Iterator[tuple[int, str, float]]:
    """Yield stage, host and time of every record that has them."""
    for line in bundle.lines:
        yield line.value.stage, line.value.host, line.value.wall_ms
    for op in bundle.ops:
        yield op.value.stage, op.value.host, op.value.wall_ms
    for end in bundle.exits:
        yield end.value.stage, end.value.host, end.value.wall_ms
    for failure in bundle.failures:
        yield failure.value.stage, failure.value.host, failure.value.wall_ms


def stages_of(bundle: Bundle) -> dict[int, str]:
    """Return every stage that the bundle knows of, with its host; the newest host wins."""
    hosts = {planned.stage: planned.host for planned in bundle.manifest.stages}
    for stage, host, _ in sorted(marks(bundle), key=lambda mark: mark[2]):
        hosts[stage] = host
    return dict(sorted(hosts.items()))


def last_ms(bundle: Bundle) -> float:
    """Return when the last thing in the bundle happened."""
    return max((wall_ms for _, _, wall_ms in marks(bundle)), default=bundle.manifest.wall_ms)


def process_at(bundle: Bundle, stage: int, wall_ms: float) -> int:
    """Return which process of the stage was the current one then: 1 for the first."""
    started = sum(seen.wall_ms <= wall_ms for seen in events(bundle, Starting, stage))
    return max(1, started)


def exit_near(bundle: Bundle, stage: int | None, wall_ms: float) -> ExitRecord | None:
    """Return the end of a stage's process that is nearest to a time."""
    ends = [kept.value for kept in bundle.exits if kept.value.stage == stage]
    return min(ends, key=lambda end: abs(end.wall_ms - wall_ms), default=None)
