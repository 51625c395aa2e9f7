"""What `orchestrator cache` prints of what the workers told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from orchestrator.bundle.screen import Screen, Table, screen_for
from orchestrator.bundle.words import printable, size
from orchestrator.cache_command import CacheOptions
from orchestrator.command import put
from orchestrator.stderr import say
from worker.protocol.events import CacheEntry, CacheRemoved, CacheVerified, Event
from worker.protocol.exits import ExitCode
from worker.protocol.schema import to_fields

E = TypeVar("E", bound=Event)
Told = Sequence[tuple[str, Sequence[Event]]]

_COMMIT_CHARS = 8
# A reason holds a path and ends with the next step.
_REASON_CHARS = 1000


def report(options: CacheOptions, told: Told) -> int:
    """Print it and return the exit code.

    Args:
        options: what was asked for.
        told: host and its worker's events.
    """
    if options.json:
        put(json.dumps(_fields(told), indent=2))
    elif options.cache_action == "ls":
        _show_entries(told, screen_for(sys.stdout))
    elif options.cache_action == "verify":
        _show_verified(told, screen_for(sys.stdout))
    else:
        _show_removed(told, screen_for(sys.stdout))
    broken = [(host, event) for host, event in _of(told, CacheVerified) if not event.ok]
    after = "removed; the next run fetches it" if options.repair else "remove it with --repair"
    for host, event in broken:
        # The worker's reason ends with the next step itself.
        reason = event.reason or f"its bytes are not those that were fetched; {after}"
        say(
            f"{'note' if options.repair else 'error'}: {event.file} of {event.model_id} on {host} "
            f"is broken: {printable(reason, _REASON_CHARS)}"
        )
    return ExitCode.LOAD_FAILED if broken and not options.repair else ExitCode.OK


def _of(told: Told, kind: type[E]) -> Iterator[tuple[str, E]]:
    for host, events in told:
        for event in events:
            if isinstance(event, kind):
                yield host, event


def _fields(told: Told) -> dict[str, Any]:
    names: dict[str, type[Event]] = {
        "entries": CacheEntry,
        "verified": CacheVerified,
        "removed": CacheRemoved,
    }
    return {
        name: [{"host": host, **to_fields(event)} for host, event in _of(told, kind)]
        for name, kind in names.items()
        if any(True for _ in _of(told, kind))
    } or {"entries": []}


def _show_entries(told: Told, screen: Screen) -> None:
    rows = []
    for host, entry in _of(told, CacheEntry):
        layers = " ".join(filter(None, (entry.layers, *(f"+{g}" for g in entry.groups))))
        rows.append(
            (
                printable(host, 28),
                printable(entry.model_id, 48),
                entry.commit[:_COMMIT_CHARS],
                printable(layers, 48) or "-",
                size(entry.size_bytes),
                size(entry.partial_bytes) if entry.partial_bytes else "-",
                _day(entry.used_ms),
            )
        )
    if not rows:
        screen.line("no weights are kept there")
    columns = ("layers", ">size", ">partial", "last used (UTC)")
    screen.table(Table(("host", "model", "commit", *columns), tuple(rows)))


def _show_verified(told: Told, screen: Screen) -> None:
    found: dict[tuple[str, str, str], list[CacheVerified]] = {}
    for host, event in _of(told, CacheVerified):
        found.setdefault((host, event.model_id, event.commit), []).append(event)
    rows = tuple(
        (
            printable(host, 28),
            printable(model_id, 48),
            commit[:_COMMIT_CHARS],
            str(len(files)),
            size(sum(file.size_bytes for file in files)),
            str(sum(not file.ok for file in files)),
        )
        for (host, model_id, commit), files in found.items()
    )
    if not rows:
        screen.line("no weights are kept there")
    screen.table(Table(("host", "model", "commit", ">files", ">size", ">broken"), rows))


def _show_removed(told: Told, screen: Screen) -> None:
    removed = list(_of(told, CacheRemoved))
    rows = tuple(
        (
            printable(host, 28),
            printable(event.model_id, 48),
            event.commit[:_COMMIT_CHARS],
            size(event.bytes_freed),
        )
        for host, event in removed
    )
    if not rows:
        screen.line("nothing of it is kept there")
    screen.table(Table(("host", "model", "commit", ">freed"), rows))
    for host, event in removed:
        if event.kept is not None:
            say(f"note: {event.model_id} on {host}: {printable(event.kept)}")


def _day(wall_ms: float) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1e3, UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "-"
