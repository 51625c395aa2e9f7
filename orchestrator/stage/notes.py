"""What a stage has told so far, kept small: for its status, and to explain its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.failures import Scene
from orchestrator.transport.base import ExitStatus
from worker.protocol.events import (
    Event,
    Exiting,
    Heartbeat,
    MemoryCheck,
    ModelLoaded,
    ModelLoadFailed,
    Op,
    SignalReceived,
    UncaughtException,
    UnknownEvent,
)

Phase = Literal["connecting", "loading", "ready", "failed", "closed"]

_EVENTS_KEPT = 12
_STDERR_LINES_KEPT = 60
_STDERR_LINE_CHARS = 2000
# Kept however many other events follow: they decide why a process ended.
_TELLING = (
    MemoryCheck,
    ModelLoaded,
    Heartbeat,
    ModelLoadFailed,
    UncaughtException,
    SignalReceived,
    Exiting,
)


@dataclass(frozen=True, slots=True)
class StageStatus:
    """A stage as the live display shows it.

    Attributes:
        last_event: newest event, `op` and `heartbeat` aside.
        since_s: `time.monotonic()` when the phase began.
    """

    stage: int
    host: str
    phase: Phase
    last_event: Event | None
    since_s: float


class StageNotes:
    """Memory of one stage; tells of each new phase and each event worth showing."""

    def __init__(self, stage: int, host: str, on_change: Callable[[StageStatus], None]) -> None:
        self._stage = stage
        self._host = host
        self._on_change = on_change
        self._phase: Phase = "connecting"
        self._since_s = time.monotonic()
        self._last_event: Event | None = None
        self._recent: deque[Event] = deque(maxlen=_EVENTS_KEPT)
        self._telling: dict[type[Event], Event] = {}
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES_KEPT)
        self._stderr_part = ""

    @property
    def phase(self) -> Phase:
        """Where the stage is in its life."""
        return self._phase

    @property
    def status(self) -> StageStatus:
        """The stage as it is now."""
        return StageStatus(self._stage, self._host, self._phase, self._last_event, self._since_s)

    @property
    def events(self) -> Sequence[Event]:
        """The events that tell why a process ended, newest of each kind."""
        return tuple(self._telling.values())

    @property
    def stderr_lines(self) -> tuple[str, ...]:
        """The last lines of stderr, the unfinished one included."""
        return (*self._stderr, self._stderr_part) if self._stderr_part else tuple(self._stderr)

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        self._phase = phase
        self._since_s = time.monotonic()
        self._on_change(self.status)

    def event(self, event: Event) -> None:
        """Keep an event."""
        self._recent.append(event)
        if isinstance(event, _TELLING):
            self._telling[type(event)] = event
        if not isinstance(event, (Op, Heartbeat)):
            self._last_event = event
            self._on_change(self.status)

    def stderr(self, chunk: bytes) -> None:
        """Keep the lines of a chunk; a progress bar's carriage returns end lines as well."""
        text = self._stderr_part + chunk.decode("utf-8", "replace").replace("\r", "\n")
        *lines, part = text.split("\n")
        self._stderr.extend(line[:_STDERR_LINE_CHARS] for line in lines if line.strip())
        self._stderr_part = part[:_STDERR_LINE_CHARS]

    def scene(self, doing: str | None, exit_status: ExitStatus | None = None) -> Scene:
        """Return where and when something goes wrong.

        Args:
            doing: name of the op in flight, if any.
            exit_status: how the process ended, if it has.
        """
        phase = str(self._phase)
        if self._phase == "ready":
            phase = f"serving {doing}" if doing else "idle"
        return Scene(
            stage=self._stage,
            host=self._host,
            phase=phase,
            exit_status=exit_status,
            last_events=tuple(_kind(event) for event in self._recent),
            stderr_tail=self.stderr_lines[-20:],
        )


def _kind(event: Event) -> str:
    if isinstance(event, UnknownEvent):
        return str(event.fields.get("event", "unknown"))
    return event.kind
