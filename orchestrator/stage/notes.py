"""What a stage has told so far, kept small: for its status, and to explain its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.failures import Scene
from orchestrator.specs import StageSpec
from orchestrator.transport.base import ExitStatus
from worker.protocol.events import (
    CacheVerified,
    DownloadProgress,
    Event,
    Exiting,
    Heartbeat,
    MemoryCheck,
    ModelLoaded,
    ModelLoadFailed,
    Op,
    SignalReceived,
    Starting,
    UncaughtException,
    UnknownEvent,
)

Phase = Literal["connecting", "loading", "ready", "done", "failed", "closed"]

_EVENTS_KEPT = 12
# Reading an op event is a tenth of what an op costs here: the first ones, then one of so many.
_FIRST_OPS = 64
_LATER_OPS = 16
_STDERR_LINES_KEPT = 60
_STDERR_LINE_CHARS = 2000
# Kept however many other events follow: they decide why a process ended.
_TELLING = (
    Starting,
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
        progress: newest news of its download, if it fetches or has fetched.
        title: what messages call it; "" is `stage N on HOST`.
        note: what is done to reach it, while it connects.
    """

    stage: int
    host: str
    phase: Phase
    last_event: Event | None
    since_s: float
    progress: DownloadProgress | None = None
    title: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """What messages call the stage."""
        return self.title or f"stage {self.stage} on {self.host}"


class StageNotes:
    """Memory of one stage; tells of each new phase and each event worth showing.

    Attributes:
        advanced_s: `time.monotonic()` when bytes were last told to be fetched or checked.
    """

    def __init__(
        self,
        spec: StageSpec,
        on_change: Callable[[StageStatus], None],
        on_event: Callable[[Event], None] = lambda event: None,
        on_op: Callable[[Op], None] = lambda op: None,
    ) -> None:
        self.advanced_s = time.monotonic()
        self._spec = spec
        self._on_change = on_change
        self._on_event = on_event
        self._on_op = on_op
        self._num_ops = 0
        self._progress: DownloadProgress | None = None
        self._phase: Phase = "connecting"
        self._note = ""
        self._since_s = time.monotonic()
        self._last_event: Event | None = None
        self._recent: deque[str] = deque(maxlen=_EVENTS_KEPT)
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
        return StageStatus(
            self._spec.stage,
            self._spec.host,
            self._phase,
            self._last_event,
            self._since_s,
            self._progress,
            self._spec.title,
            self._note,
        )

    @property
    def events(self) -> Sequence[Event]:
        """The events that tell why a process ended, newest of each kind."""
        return tuple(self._telling.values())

    @property
    def stderr_lines(self) -> tuple[str, ...]:
        """The last lines of stderr, the unfinished one included."""
        return (*self._stderr, self._stderr_part) if self._stderr_part else tuple(self._stderr)

    def note(self, text: str) -> None:
        """Tell what is done while the stage connects."""
        self._note = text
        self._on_change(self.status)

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        self._phase = phase
        self._since_s = time.monotonic()
        self._on_change(self.status)

    def event(self, event: Event) -> None:
        """Keep an event."""
        self._recent.append(_kind(event))
        if isinstance(event, _TELLING):
            self._telling[type(event)] = event
        if isinstance(event, Op):
            self._num_ops += 1
            self._on_op(event)
        if isinstance(event, (Op, Heartbeat)):
            return
        self._last_event = event
        if isinstance(event, CacheVerified):
            self.advanced_s = time.monotonic()
        if isinstance(event, DownloadProgress):
            if self._progress is None or event.bytes_done > self._progress.bytes_done:
                self.advanced_s = time.monotonic()
            self._progress = event
        self._on_event(event)
        self._on_change(self.status)

    @property
    def wants_op(self) -> bool:
        """Whether the next op event is to be read: the first ones and some later tell the pace."""
        return self._num_ops < _FIRST_OPS or self._num_ops % _LATER_OPS == 0

    def op_event(self) -> None:
        """Note that an op was reported; nothing else of it matters here."""
        self._num_ops += 1
        self._recent.append(Op.kind)

    def stderr(self, chunk: bytes) -> None:
        """Keep the lines of a chunk; a progress bar's carriage returns end lines as well."""
        text = self._stderr_part + chunk.decode("utf-8", "replace").replace("\r", "\n")
        *lines, part = text.split("\n")
        self._stderr.extend(line[:_STDERR_LINE_CHARS] for line in lines if line.strip())
        self._stderr_part = part[:_STDERR_LINE_CHARS]

    def forget_stderr(self) -> None:
        """Begin anew: what a try said that did not count explains nothing later."""
        self._stderr.clear()
        self._stderr_part = ""

    def scene(self, doing: str | None, exit_status: ExitStatus | None = None) -> Scene:
        """Return where and when something goes wrong.

        Args:
            doing: name of the op in flight, if any.
            exit_status: how the process ended, if it has.
        """
        phase = str(self._phase)
        if self._phase == "ready":
            phase = f"serving {doing}" if doing else "idle"
        elif self._phase == "loading" and self._spec.options.only is not None:
            phase = self._spec.options.only.doing
        return Scene(
            stage=self._spec.stage,
            host=self._spec.host,
            title=self._spec.title,
            phase=phase,
            exit_status=exit_status,
            last_events=tuple(self._recent),
            stderr_tail=self.stderr_lines[-20:],
        )


def _kind(event: Event) -> str:
    if isinstance(event, UnknownEvent):
        return str(event.fields.get("event", "unknown"))
    return event.kind
