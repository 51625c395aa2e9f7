"""What `orchestrator cache` prints of what the workers told."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from orchestrator.bundle.screen import Screen, Table, screen_for
from orchestrator.bundle.words import printable, size
from orchestrator.cache_options import CacheOptions
from orchestrator.command import put
from orchestrator.stderr import say
from worker.protocol.events import CacheEntry, CacheRemoved, CacheVerified, Event
from worker.protocol.exits import ExitCode
from worker.protocol.schema import to_fields

E = TypeVar("E", bound=Event)
Told = Sequence[tuple[str, Sequence[Event]]]

_COMMIT_CHARS = 8
# Where long names leave room for it.
_TABLE_CHARS = 100
_LAYERS = 3  # The column.
_LAYERS_CHARS = 16
_GAP_CHARS = 2
# A reason holds a path and ends with the next step.
_REASON_CHARS = 1000


def report(options: CacheOptions, told: Told) -> int:
    """Print it and return the exit code.

    Args:
        options: what was asked for.
        told: host and its worker's events.
    """
    nothing = nothing_of(options, told)
    if options.json:
        put(json.dumps(_fields(told), indent=2))
    elif is_unknown(options, told):
        pass  # An error says so.
    elif options.cache_action == "ls":
        _show_entries(told, nothing, screen_for(sys.stdout))
    elif options.cache_action == "verify":
        _show_verified(told, nothing, screen_for(sys.stdout))
    else:
        _show_removed(told, nothing, screen_for(sys.stdout))
    broken = [(host, event) for host, event in _of(told, CacheVerified) if not event.ok]
    after = (
        "removed; the next run fetches it"
        if options.repair
        else "repeat the command with --repair to remove it"
    )
    for host, event in broken:
        # The worker's reason ends with the next step itself.
        reason = event.reason or f"its bytes are not those that were fetched; {after}"
        say(
            f"{'note' if options.repair else 'error'}: {event.file} of {event.model_id} on {host} "
            f"is broken: {printable(reason, _REASON_CHARS)}"
        )
    if is_unknown(options, told):
        say(f"error: {nothing}; `orchestrator cache ls` shows what is kept")
        return ExitCode.LOAD_FAILED
    return ExitCode.LOAD_FAILED if broken and not options.repair else ExitCode.OK


def is_unknown(options: CacheOptions, told: Told) -> bool:
    """Tell whether a model is to be removed that no host keeps."""
    is_named = options.cache_action == "rm" and options.model_id is not None
    return is_named and not any(True for _ in _of(told, CacheRemoved))


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


def nothing_of(options: CacheOptions, told: Told) -> str:
    """Return the sentence for hosts that keep nothing of what was asked for."""
    of = f" of {printable(options.model_id, 96)}" if options.model_id else ""
    at = f" at commit {options.revision}" if options.revision else ""
    here = all(host == "local" for host, _ in told)
    return f"no weights{of}{at} are kept {'here' if here else 'there'}"


def _show_entries(told: Told, nothing: str, screen: Screen) -> None:
    entries = list(_of(told, CacheEntry))
    if not entries:
        screen.line(nothing)
    screen.table(entries_table(entries))
    if any(not (e.layers or e.groups or e.partial_bytes) for _, e in entries):
        screen.line(
            "whole files that huggingface_hub fetched are in its own cache; `hf cache ls` shows "
            "them"
        )


def entries_table(entries: Sequence[tuple[str, CacheEntry]]) -> Table:
    """Return a row for each; layers that need more room than is left go on below."""
    partial = any(entry.partial_bytes for _, entry in entries)
    headings = ("host", "model", "commit", "layers", ">size", ">partial", "last used")
    rows = [
        (
            printable(host, 28),
            printable(entry.model_id, 48),
            entry.commit[:_COMMIT_CHARS],
            printable(" ".join(_kept_words(entry))) or "-",
            size(entry.size_bytes),
            size(entry.partial_bytes) if entry.partial_bytes else "-",
            _day(entry.used_ms),
        )
        for host, entry in entries
    ]
    columns = [n for n, heading in enumerate(headings) if partial or heading != ">partial"]
    lines = [tuple(line[n] for n in columns) for line in (headings, *rows)]
    widths = [max(map(len, column)) + _GAP_CHARS for column in zip(*lines, strict=True)]
    room = _TABLE_CHARS - sum(widths) + widths[_LAYERS]
    return Table(lines[0], tuple(_folded(lines[1:], max(_LAYERS_CHARS, room - _GAP_CHARS))))


def _folded(rows: Sequence[tuple[str, ...]], room: int) -> Iterator[tuple[str, ...]]:
    """Yield rows whose layers are at most `room` wide; what is over goes into rows below."""
    for row in rows:
        first, *more = textwrap.wrap(row[_LAYERS], room, break_on_hyphens=False)
        yield (*row[:_LAYERS], first, *row[_LAYERS + 1 :])
        for words in more:
            yield tuple(words if n == _LAYERS else "" for n in range(len(row)))


def _kept_words(entry: CacheEntry) -> Iterator[str]:
    """Yield layers and the groups beside them: `model.embed_tokens.weight` as `+embed_tokens`."""
    yield from entry.layers.split()
    for group in dict.fromkeys(map(_short_name, entry.groups)):
        yield f"+{group}"


def _short_name(group: str) -> str:
    words = group.removesuffix(".weight").removesuffix(".bias")
    return words.rpartition(".")[2]


def _show_verified(told: Told, nothing: str, screen: Screen) -> None:
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
        screen.line(nothing)
    screen.table(Table(("host", "model", "commit", ">files", ">size", ">broken"), rows))


def _show_removed(told: Told, nothing: str, screen: Screen) -> None:
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
        screen.line(nothing)
    screen.table(Table(("host", "model", "commit", ">freed"), rows))
    for host, event in removed:
        if event.kept is not None:
            say(f"note: {event.model_id} on {host}: {printable(event.kept)}")


def _day(wall_ms: float) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1e3, UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return "-"
