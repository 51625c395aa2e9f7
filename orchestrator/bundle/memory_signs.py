"""What makes it likely that the kernel killed a process for its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from orchestrator.bundle.findings import Evidence
from orchestrator.bundle.lookup import Seen, events, process_at
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.records import ExitRecord
from orchestrator.bundle.words import printable, size
from orchestrator.oom import oom_evidence
from worker.protocol.events import (
    Device,
    Event,
    Heartbeat,
    MemoryCheck,
    ModelLoaded,
    Starting,
)

E = TypeVar("E", bound=Event)

FULL = 0.9
_LINES = 20
_WORDS = ("out of memory", "cannot allocate memory", "bad_alloc", "memoryerror")


def short_of_memory(bundle: Bundle, end: ExitRecord) -> Iterator[Evidence]:
    """Yield it, the surest first; nothing where somebody else may as well have killed it."""
    process = process_at(bundle, end.stage, end.wall_ms)
    told = [
        seen
        for seen in events(bundle, Event, end.stage)
        if process_at(bundle, end.stage, seen.wall_ms) == process
    ]
    yield from _by_the_kernel(bundle, end, told)
    for kept in bundle.stderr.get(end.stage, ())[-_LINES:]:
        # The kernel's own words were looked at above, for this process alone.
        is_kernel = "illed process" in kept.value
        if not is_kernel and any(word in kept.value.lower() for word in _WORDS):
            yield Evidence(kept.where, printable(kept.value))
    yield from _by_size(told)
    yield from _by_a_later_process(bundle, end, told)


def _by_the_kernel(bundle: Bundle, end: ExitRecord, told: list[Seen[Event]]) -> Iterator[Evidence]:
    lines = bundle.stderr.get(end.stage, ())[-_LINES:]
    hello = _last(told, Starting)
    pid = hello.pid if hello else None
    found = oom_evidence([kept.value for kept in lines], pid, _kills_before(told))
    if found is not None:
        number, text = found
        yield Evidence(lines[number].where, printable(text))


def _by_size(told: list[Seen[Event]]) -> Iterator[Evidence]:
    """It held nearly all that there was."""
    check, device = _last(told, MemoryCheck), _last(told, Device)
    bounds = [
        check.free_bytes if check and check.device == "cpu" else None,
        device.total_bytes if device and device.device == "cpu" else None,
    ]
    bound_bytes = min((bound for bound in bounds if bound), default=None)
    held = [
        (seen.event.rss_mb, seen.where)
        for seen in told
        if isinstance(seen.event, (ModelLoaded, Heartbeat))
    ]
    for rss_mb, where in held[-1:]:
        if bound_bytes and rss_mb * 1e6 >= FULL * bound_bytes:
            text = f"the process held {size(rss_mb * 1e6)} of the {size(bound_bytes)} there were"
            yield Evidence(where, text)


def _by_a_later_process(
    bundle: Bundle, end: ExitRecord, told: list[Seen[Event]]
) -> Iterator[Evidence]:
    """The stage was started again on that host, and the kernel's counter had gone up."""
    before = _kills_before(told)
    for seen in events(bundle, Starting, end.stage):
        is_later = seen.wall_ms > end.wall_ms and seen.host == end.host
        after = seen.event.oom_kills
        if is_later and before is not None and after is not None:
            if after > before:
                text = f"the kernel there killed {after - before} for want of memory meanwhile"
                yield Evidence(seen.where, text)
            return


def _kills_before(told: list[Seen[Event]]) -> int | None:
    counts = [
        seen.event.oom_kills
        for seen in told
        if isinstance(seen.event, (Starting, Heartbeat)) and seen.event.oom_kills is not None
    ]
    return counts[-1] if counts else None


def _last(told: list[Seen[Event]], kind: type[E]) -> E | None:
    found = [seen.event for seen in told if isinstance(seen.event, kind)]
    return found[-1] if found else None
