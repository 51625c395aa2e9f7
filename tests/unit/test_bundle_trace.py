"""The trace obeys the rules of its format and is laid on the orchestrator's clock alone."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bundle.reader import read_bundle
from orchestrator.bundle.trace import trace_json, trace_of
from tests.support import page_bundles
from tests.support.bundles import CASES, RECORDED

NEEDED = {"M": {"name", "args"}, "X": {"name", "ts", "dur", "tid"}, "C": {"name", "ts", "args"}}
NEEDED["i"] = {"name", "ts", "s"}


def rules_broken(trace: dict[str, Any]) -> list[str]:
    """Check what Perfetto's importer asks of a trace; apart from the code that writes it."""
    broken = []
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        kind = event.get("ph")
        if kind not in NEEDED or not NEEDED[kind] | {"pid"} <= set(event):
            broken.append(f"{event} lacks a field")
        if kind == "M" and event["name"] not in (
            *("process_name", "process_sort_index"),
            *("thread_name", "thread_sort_index"),
        ):
            broken.append(f"{event['name']} is no metadata")
        if kind != "M" and not (type(event["ts"]) is int and event["ts"] >= 0):
            broken.append(f"{event} has no time")
        if kind == "C" and not all(type(v) in (int, float) for v in event["args"].values()):
            broken.append(f"{event} counts no numbers")
        if kind == "i" and event["s"] not in "gpt":
            broken.append(f"{event} has no scope")
        if kind == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track, spans in tracks.items():
        open_until: list[int] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            if open_until and end > open_until[-1]:
                broken.append(f"{track}: a span begins within another and ends after it")
            open_until.append(end)
    named = {e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    broken += [f"{e} is of no named process" for e in trace["traceEvents"] if e["pid"] not in named]
    return broken


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_trace_of_a_recorded_bundle_obeys_the_format(name: str) -> None:
    text = trace_json(read_bundle(RECORDED / name))
    assert rules_broken(json.loads(text)) == []


def test_a_trace_has_every_span_at_the_orchestrators_time(tmp_path: Path) -> None:
    page_bundles.recovered(tmp_path / "b")
    trace = trace_of(read_bundle(tmp_path / "b"))
    assert rules_broken(trace) == []
    names: dict[tuple[int, int], str] = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] in ("process_name", "thread_name")
    }
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            counts[names[event["pid"], 0], names[event["pid"], event["tid"]]] += 1
    assert dict(counts) == {
        ("orchestrator · hub", "requests"): 1,
        ("orchestrator · hub", "recoveries"): 4,
        ("stage 0 · gpu1.lan", "start-up"): 4,
        ("stage 0 · gpu1.lan", "ops in the worker"): 100,
        ("stage 0 · gpu1.lan", "ops as the orchestrator waited"): 100,
        ("stage 1 · gpu9.lan", "start-up"): 8,
        ("stage 1 · gpu9.lan", "ops in the worker"): 100,
        ("stage 1 · gpu9.lan", "ops as the orchestrator waited"): 100,
        ("stage 2 · gpu3.lan", "start-up"): 4,
        ("stage 2 · gpu3.lan", "ops in the worker"): 100,
        ("stage 2 · gpu3.lan", "ops as the orchestrator waited"): 100,
    }
    ends = [e["ts"] + e.get("dur", 0) for e in trace["traceEvents"] if e["ph"] != "M"]
    # The clock of every other host is two hours ahead; nothing of it is to be seen.
    assert max(ends) < 10_000_000


def test_the_worker_computed_while_the_orchestrator_waited(tmp_path: Path) -> None:
    page_bundles.healthy(tmp_path / "b")
    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in trace_of(read_bundle(tmp_path / "b"))["traceEvents"]:
        if event["ph"] == "X" and event["name"] in ("decode_step", "forward_range"):
            spans[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    for pid in (100, 101):
        inner, outer = spans[pid, 2000], spans[pid, 3000]
        assert len(inner) == len(outer) == 60
        assert all(
            begin <= at <= at + took <= begin + waited + 1
            for (at, took), (begin, waited) in zip(inner, outer, strict=True)
        )


def test_requests_at_once_are_on_tracks_side_by_side(tmp_path: Path) -> None:
    run = page_bundles.WideRun(tmp_path / "b", ("gpu1.lan",))
    for number, (begin_ms, end_ms) in enumerate([(0, 100), (10, 60), (70, 120)]):
        run.request(begin_ms, end_ms, 5, f"r{number}")
    run.close(130, 0)
    trace = trace_of(read_bundle(tmp_path / "b"))
    spans = [(e["name"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    assert spans == [("request r0", 1000), ("request r1", 1001), ("request r2", 1001)]
