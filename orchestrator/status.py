"""What the user sees while the stages start: a live table, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TextIO

from orchestrator.event_words import left_text, size_text, words_of
from orchestrator.specs import StageSpec
from orchestrator.stage import StageStatus
from orchestrator.stderr import write_line
from worker.protocol.events import (
    CacheVerified,
    DownloadProgress,
    FetchingModel,
    HostSurveyed,
    Importing,
    LoadingModel,
)

if TYPE_CHECKING:
    from rich.table import Table

# These take long, so plain lines tell that they began.
_TOLD = (Importing, FetchingModel, DownloadProgress, LoadingModel, HostSurveyed, CacheVerified)
_STYLES = {"ready": "green", "done": "green", "failed": "red", "loading": "cyan"}


class StartDisplay(AbstractContextManager["StartDisplay"], Protocol):
    """Shows stages while they start; used as a context manager."""

    def update(self, status: StageStatus) -> None:
        """Take a stage's news."""


def start_display(specs: Sequence[StageSpec], stderr: TextIO | None) -> StartDisplay:
    """Return the display that suits stderr; None is a program that was started without one."""
    if stderr is not None and stderr.isatty():
        return LiveTable(specs, stderr)
    return PlainLines(stderr)


class RunDisplay:
    """The display that suits stderr while all stages start; then lines for those that do again.

    A table cannot be redrawn below a text that grows.

    Args:
        specs: the stages.
        stderr: where to show them; None is a program that was started without one.
        end_text: called before each line that is told after the start.
    """

    def __init__(
        self, specs: Sequence[StageSpec], stderr: TextIO | None, end_text: Callable[[], None]
    ) -> None:
        self._start = start_display(specs, stderr)
        self._lines = PlainLines(stderr, end_text)
        self._is_starting = True

    def __enter__(self) -> RunDisplay:
        self._start.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End what is shown of the start; `update` goes on."""
        self._is_starting = False
        self._start.__exit__(kind, error, traceback)

    def update(self, status: StageStatus) -> None:
        """Take a stage's news."""
        (self._start if self._is_starting else self._lines).update(status)


class PlainLines:
    """One line for each thing worth telling, for logs and pipes."""

    def __init__(self, stderr: TextIO | None, end_text: Callable[[], None] = lambda: None) -> None:
        self._stderr = stderr
        self._end_text = end_text
        self._start_s = time.monotonic()
        self._said: dict[int, str] = {}
        self._whole: dict[int, list[int]] = {}

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *ignored: object) -> None:
        """Do nothing; the lines stay."""

    def update(self, status: StageStatus) -> None:
        """Print a line where there is something new."""
        if status.phase == "loading" and not isinstance(status.last_event, _TOLD):
            return
        event = status.last_event
        if status.phase == "loading" and isinstance(event, CacheVerified) and event.ok:
            # A model has hundreds of them; they are counted, and what is broken is told at once.
            self._whole.setdefault(status.stage, []).append(event.size_bytes)
            return
        words = state_words(status)
        if status.phase == "done" and status.stage in self._whole:
            sizes = self._whole[status.stage]
            words = f"{len(sizes)} files ({size_text(sum(sizes))}) are whole"
        if words == self._said.get(status.stage) or status.phase in ("failed", "closed"):
            return  # A failure has its own sentence, and the end of a run its summary.
        self._said[status.stage] = words
        self._end_text()
        elapsed_s = time.monotonic() - self._start_s
        write_line(self._stderr, f"[{elapsed_s:6.1f} s] {status.name}: {words}")


class LiveTable:
    """A table that is redrawn in place."""

    def __init__(self, specs: Sequence[StageSpec], stderr: TextIO) -> None:
        # Imported here: only a terminal needs it.
        from rich.console import Console
        from rich.live import Live

        self._stages: dict[int, StageStatus | None] = {spec.stage: None for spec in specs}
        self._hosts = {spec.stage: spec.place for spec in specs}
        self._numbers = {spec.stage: str(spec.stage) if spec.is_stage else "" for spec in specs}
        self._start_s = time.monotonic()
        self._ended_s: dict[int, float] = {}
        self._live = Live(
            console=Console(file=stderr),
            get_renderable=self._table,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
        )

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What was reached is worth keeping only when it went wrong.
        self._live.transient = kind is None
        self._live.stop()

    def update(self, status: StageStatus) -> None:
        """Keep the news for the next redraw."""
        if status.phase == "closed":
            return  # Other stages that end because one failed; what they had reached stays.
        self._stages[status.stage] = status
        if status.phase in ("ready", "done", "failed"):
            self._ended_s.setdefault(status.stage, time.monotonic())

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("stage", "host", "state"):
            table.add_column(heading, overflow="fold")
        fetches = any(status and status.progress for status in self._stages.values())
        for heading in (*(("fetched", "MB/s", "left") if fetches else ()), "seconds"):
            table.add_column(heading, justify="right")
        for stage, status in self._stages.items():
            words = "waiting" if status is None else state_words(status, short=True)
            style = "" if status is None else _STYLES.get(status.phase, "")
            elapsed_s = self._ended_s.get(stage, time.monotonic()) - self._start_s
            # Text, not str: a host in brackets is no markup.
            table.add_row(
                self._numbers[stage],
                Text(self._hosts[stage]),
                Text(words, style),
                *(_progress_cells(status.progress if status else None) if fetches else ()),
                f"{elapsed_s:.1f}",
            )
        return table


def _progress_cells(progress: DownloadProgress | None) -> tuple[str, str, str]:
    """Return how much of a download is done, how fast it is, and how long it still takes."""
    if progress is None:
        return "", "", ""
    done, total = size_text(progress.bytes_done), size_text(progress.bytes_total)
    return f"{done} of {total}", f"{progress.mbps:.1f}", left_text(progress)


def state_words(status: StageStatus, *, short: bool = False) -> str:
    """Return what a stage is doing; `short` leaves out what has columns of its own."""
    if status.phase == "loading" and isinstance(status.last_event, DownloadProgress) and short:
        return "downloading"
    if status.phase == "loading" and status.last_event is not None:
        return words_of(status.last_event)
    if status.phase == "connecting" and status.note:
        return status.note
    return {"connecting": "connecting", "loading": "starting"}.get(status.phase, status.phase)
