"""The start display: what is told of each stage, in plain lines and in a table."""

from __future__ import annotations

import io
import time

import pytest

from orchestrator.event_words import left_text, words_of
from orchestrator.specs import StageSpec
from orchestrator.stage.notes import Phase, StageStatus
from orchestrator.status import LiveTable, PlainLines, RunDisplay, start_display
from orchestrator.stderr import write_line
from worker.protocol.events import (
    EVENTS,
    CacheVerified,
    Device,
    DownloadProgress,
    Event,
    Importing,
    LoadingModel,
    MemoryCheck,
    UnknownEvent,
)

LOADING = LoadingModel(model_id="m", layer_range="0:15", quantization="nf4")
HALF = DownloadProgress(bytes_done=5 * 10**8, bytes_total=10**9, elapsed_ms=1e4, mbps=50.0)


def status(phase: Phase, event: Event | None = None, stage: int = 0) -> StageStatus:
    return StageStatus(stage, f"[host{stage}]", phase, event, time.monotonic())


NEWS = [
    status("connecting"),
    status("loading", Device(device="cpu")),
    status("loading", Importing(library="torch")),
    status("loading", HALF),
    status("loading", HALF),
    status("loading", LOADING),
    status("ready", LOADING),
    status("closed", LOADING),
]


def test_plain_lines_tell_each_news_once() -> None:
    stderr = io.StringIO()
    with PlainLines(stderr) as display:
        for news in NEWS:
            display.update(news)
    told = [line.partition("] ")[2] for line in stderr.getvalue().splitlines()]
    assert told == [
        "stage 0 on [host0]: connecting",
        "stage 0 on [host0]: importing torch",
        "stage 0 on [host0]: downloading 50 % of 1.0 GB, 50.0 MB/s, 10 s left",
        "stage 0 on [host0]: loading layers 0:15 (nf4)",
        "stage 0 on [host0]: ready",
    ]


def checked(*, ok: bool, stage: int = 0) -> StageStatus:
    event = CacheVerified(model_id="m", commit="c", file="a.st", size_bytes=10**6, ok=ok)
    return status("loading", event, stage)


def test_plain_lines_count_whole_files_and_name_broken_ones() -> None:
    stderr = io.StringIO()
    with PlainLines(stderr) as display:
        for news in (checked(ok=True), checked(ok=False), checked(ok=True), checked(ok=True)):
            display.update(news)
        display.update(status("done", news.last_event))
        # A fetch may find a broken file and no other.
        display.update(checked(ok=False, stage=1))
        display.update(status("done", stage=1))
    told = [line.partition("] ")[2] for line in stderr.getvalue().splitlines()]
    assert told == [
        "stage 0 on [host0]: a.st is broken",
        "stage 0 on [host0]: 3 files (3 MB) are whole",
        "stage 1 on [host1]: a.st is broken",
        "stage 1 on [host1]: done",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_table_of_every_stage() -> None:
    stderr = Terminal()
    specs = [StageSpec(stage=i, num_stages=2, host=f"[host{i}]") for i in range(2)]
    with start_display(specs, stderr) as display:
        assert isinstance(display, LiveTable)
        display.update(status("loading", LOADING))
        display.update(status("ready", LOADING, stage=1))
    last = stderr.getvalue()
    assert all(words in last for words in ("[host0]", "[host1]", "loading layers 0:15", "ready"))


def test_a_restart_is_told_in_lines_below_the_text_also_on_a_terminal() -> None:
    stderr = Terminal()
    specs = [StageSpec(stage=0, num_stages=1)]
    with RunDisplay(specs, stderr, lambda: write_line(stderr, "(text ends)")) as display:
        display.update(status("loading", LOADING))
    before = len(stderr.getvalue())
    for news in (status("connecting"), status("loading", LOADING), status("loading", LOADING)):
        display.update(news)
    told = [line.partition("] ")[2] or line for line in stderr.getvalue()[before:].splitlines()]
    assert told == [
        "(text ends)",
        "stage 0 on [host0]: connecting",
        "(text ends)",
        "stage 0 on [host0]: loading layers 0:15 (nf4)",
    ]


def test_a_download_has_columns_of_its_own() -> None:
    stderr = Terminal()
    specs = [StageSpec(stage=0, num_stages=1, host="h")]
    with start_display(specs, stderr) as display:
        # The figures stay while the stage goes on with something else.
        display.update(StageStatus(0, "h", "loading", LOADING, time.monotonic(), HALF))
    last = stderr.getvalue()
    assert all(
        words in last
        for words in ("fetched", "500 MB of 1.0 GB", "MB/s", "50.0", "left", "10 s", "loading")
    )


@pytest.mark.parametrize(
    ("left_bytes", "mbps", "words"),
    [
        (0, 50.0, ""),
        (10**9, 0.0, ""),
        (10**9, 50.0, "20 s"),
        (10**10, 50.0, "3 min 20 s"),
        (10**12, 50.0, "5 h 33 min"),
    ],
)
def test_what_is_left_of_a_download_is_told_in_time(
    left_bytes: int, mbps: float, words: str
) -> None:
    progress = DownloadProgress(bytes_done=7, bytes_total=left_bytes + 7, elapsed_ms=1.0, mbps=mbps)
    assert left_text(progress) == words


def test_no_terminal_gets_plain_lines() -> None:
    assert isinstance(start_display([], io.StringIO()), PlainLines)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (MemoryCheck(device="cpu", fits=True, weights_bytes=1, kv_bytes=1, scratch_bytes=1,
                     process_bytes=1, need_bytes=2 * 10**8, free_bytes=8 * 10**9, limit="memory"),
         "needs 191 MiB of 7.45 GiB free"),
        (UnknownEvent(fields={"event": "of_a_later_version"}), "of_a_later_version"),
        (UnknownEvent(fields={}), "unknown event"),
    ],
)  # fmt: skip
def test_events_in_words(event: Event, words: str) -> None:
    assert words_of(event) == words


def test_an_event_without_words_of_its_own_is_named() -> None:
    class Polishing(Event):
        kind = "pp_polishing_layers"

    assert Polishing.kind not in EVENTS
    assert words_of(Polishing()) == "polishing layers"
