"""Build the events of a trace: processes, tracks whose spans do not overlap, counters, instants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.bundle.words import printable

TRACKS_APART = 1000  # Room for the tracks side by side of one kind.
_LATEST_US = 1e18


@dataclass(frozen=True, slots=True)
class Span:
    """Something that takes time; `start_ms` is by the orchestrator's clock."""

    name: str
    start_ms: float
    took_ms: float
    facts: Mapping[str, Any]


class Tracks:
    """Collects trace events; times before `begin_ms` count as `begin_ms`.

    Args:
        begin_ms: what becomes time 0.
    """

    def __init__(self, begin_ms: float) -> None:
        self.begin_ms = begin_ms
        self._events: list[dict[str, Any]] = []
        self._kinds: dict[int, int] = {}  # By process: how many kinds of tracks it has.

    def events(self) -> list[dict[str, Any]]:
        """Return everything so far, by time; what names processes and tracks comes first."""
        return sorted(self._events, key=lambda event: (event["ph"] != "M", event.get("ts", 0)))

    def process(self, pid: int, name: str) -> None:
        """Name a process; processes are shown in the order of their ids."""
        self._name(pid, 0, "process_name", {"name": name})
        self._name(pid, 0, "process_sort_index", {"sort_index": pid})

    def spans(self, pid: int, title: str, spans: Iterable[Span], *, nest: bool = False) -> None:
        """Put spans on as few tracks as hold them without an overlap.

        Args:
            pid: whose they are.
            title: name of the first track; the others get a number.
            spans: in any order.
            nest: whether one that lies within another may stand on the same track.
        """
        base = self._kinds[pid] = self._kinds.get(pid, 0) + 1
        tracks: list[list[int]] = []  # Of each track, the ends of the spans that are open.
        # A clock that was set back may have ended one before it began.
        whole = [
            (self._us(s.start_ms), self._us(s.start_ms + max(0.0, s.took_ms)), s) for s in spans
        ]
        for start_us, end_us, span in sorted(whole, key=lambda item: (item[0], -item[1])):
            number = _track_for(tracks, start_us, end_us, nest=nest)
            tid = base * TRACKS_APART + number
            if number == len(tracks):
                tracks.append([])
                shown = title if number == 0 else f"{title} ({number + 1})"
                self._name(pid, tid, "thread_name", {"name": shown})
                self._name(pid, tid, "thread_sort_index", {"sort_index": tid})
            tracks[number].append(end_us)
            self._add(
                "X", pid, span.name, start_us, tid=tid, dur=end_us - start_us, args=span.facts
            )

    def counter(self, pid: int, name: str, at_ms: float, values: Mapping[str, float]) -> None:
        """Add one value of a curve."""
        self._add("C", pid, name, self._us(at_ms), args=values)

    def instant(self, pid: int, name: str, at_ms: float, facts: Mapping[str, Any]) -> None:
        """Mark a moment of a process."""
        self._add("i", pid, name, self._us(at_ms), tid=0, s="p", args=facts)

    def _name(self, pid: int, tid: int, kind: str, args: Mapping[str, Any]) -> None:
        self._events.append({"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": dict(args)})

    def _add(
        self, ph: str, pid: int, name: str, ts: int, *, args: Mapping[str, Any], **more: Any
    ) -> None:
        named = {"ph": ph, "pid": pid, "name": printable(name, 100), "cat": "stageline", "ts": ts}
        self._events.append(named | more | {"args": {key: _fact(args[key]) for key in args}})

    def _us(self, wall_ms: float) -> int:
        # Whole microseconds: ends and beginnings that meet do not overlap by rounding.
        return int(min(_LATEST_US, max(0.0, (wall_ms - self.begin_ms) * 1000)))


def _track_for(tracks: list[list[int]], start_us: int, end_us: int, *, nest: bool) -> int:
    """Return the first track where the span lies after, or may lie within, all that is open."""
    for number, open_until in enumerate(tracks):
        while open_until and open_until[-1] <= start_us:
            open_until.pop()
        if not open_until or (nest and end_us <= open_until[-1]):
            return number
    return len(tracks)


def _fact(value: Any, depth: int = 1) -> Any:
    """Return a value as every JSON reader takes it: no NaN, nothing deep, no control characters."""
    if isinstance(value, str):
        return printable(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth:
        return {printable(str(key), 100): _fact(item, depth - 1) for key, item in value.items()}
    return printable(repr(value))
