"""`bundle show` tells what each stage fetched, how fast, and where it went wrong."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from orchestrator.bundle.fetch_facts import FetchFacts, fetch_among
from orchestrator.bundle.held import HeldRecorder
from orchestrator.bundle.reader import read_bundle
from orchestrator.bundle.report import report_of
from orchestrator.bundle.screen import PlainScreen
from orchestrator.bundle.show import show
from orchestrator.bundle.writer import BundleWriter
from tests.support.bundles import Run
from worker.protocol.events import (
    CacheHit,
    CacheOrphanCleaned,
    DownloadFailed,
    DownloadProgress,
    Event,
    FetchingModel,
    ModelFetched,
)

BEGUN = FetchingModel(model_id="org/m")


def progress(done: int, *, total: int = 100, elapsed_ms: float = 0, came: int = 0) -> Event:
    mbps = came * 1e3 / elapsed_ms if elapsed_ms else 0.0
    return DownloadProgress(
        bytes_done=done * 10**6, bytes_total=total * 10**6, elapsed_ms=elapsed_ms, mbps=mbps
    )


@pytest.mark.parametrize(
    ("told", "facts"),
    [
        ([], None),
        ([BEGUN], None),
        (
            [BEGUN, CacheHit(bytes_total=7), ModelFetched(bytes_total=7, elapsed_ms=1)],
            FetchFacts(state="hit", total_bytes=7),
        ),
        (
            [
                BEGUN,
                CacheOrphanCleaned(file="x", bytes_freed=5),
                progress(0),
                progress(100, elapsed_ms=2000, came=60),
                ModelFetched(bytes_total=120 * 10**6, elapsed_ms=2100),
            ],
            FetchFacts(
                state="fetched",
                total_bytes=120 * 10**6,
                fetched_bytes=60 * 10**6,
                left_bytes=40 * 10**6,
                elapsed_ms=2000,
                mbps=30,
                cleaned_bytes=5,
            ),
        ),
        (
            [BEGUN, progress(10, elapsed_ms=1000, came=10), DownloadFailed(reason="no room")],
            FetchFacts(
                state="failed",
                total_bytes=100 * 10**6,
                fetched_bytes=10**7,
                elapsed_ms=1000,
                mbps=10,
                reason="no room",
            ),
        ),
        (
            [BEGUN, progress(3), BEGUN, CacheHit(bytes_total=7)],
            FetchFacts(state="hit", total_bytes=7),
        ),
    ],
)
def test_the_newest_fetch_is_told(told: list[Event], facts: FetchFacts | None) -> None:
    assert fetch_among(told) == facts


def test_each_host_has_its_line(tmp_path: Path) -> None:
    run = Run(tmp_path / "b")
    for stage in (0, 1):
        run.hello(stage)
        run.fetch(stage)
    run.event(0, progress(0))
    run.at(3010).event(0, progress(100, elapsed_ms=2000, came=60))
    run.event(0, ModelFetched(bytes_total=120 * 10**6, elapsed_ms=2000))
    run.event(1, DownloadFailed(reason="the hub refuses: 403; ask for access"))
    run.writer.close(3)
    stream = io.StringIO()
    show(report_of(read_bundle(tmp_path / "b")), PlainScreen(stream))
    lines = [line.split() for line in stream.getvalue().splitlines()]
    start = next(index for index, words in enumerate(lines) if words[:1] == ["Weights"])
    assert lines[start + 1 : start + 4] == [
        "stage host size fetched took MB/s".split(),
        "0 alpha 120 MB 60 MB 2.00 s 30.0 40 MB were here".split(),
        "1 beta 0 B - - - failed, the hub refuses: 403; ask for access".split(),
    ]


def test_held_facts_are_handed_over_in_order_and_once(tmp_path: Path) -> None:
    held = HeldRecorder()
    held.line(0, "a", b'{"event":"first"}\n', 1.0)
    held.stderr(0, "a", b"oops\n")
    held.line(0, "a", b'{"event":"second"}\n', 2.0)
    for folder in ("b", "c"):
        writer = BundleWriter(tmp_path / folder)
        held.hand_over(writer)
        writer.close(0)
    kept = (tmp_path / "b" / "events.jsonl").read_text().splitlines()
    assert ['"first"' in kept[0], '"second"' in kept[1], len(kept)] == [True, True, 2]
    assert (tmp_path / "b" / "stderr" / "stage-0.log").read_text() == "oops\n"
    assert not (tmp_path / "c" / "events.jsonl").exists()
