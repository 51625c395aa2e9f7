"""The parts of a page: axes, densities, curves, and that nothing foreign becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from orchestrator.bundle.html.axis import Axis
from orchestrator.bundle.html.curves import memory_curves
from orchestrator.bundle.html.density import BINS, density_path, in_flight_path
from orchestrator.bundle.html.page import page_of
from orchestrator.bundle.html.story import moments_of
from orchestrator.bundle.processes import processes_of
from orchestrator.bundle.reader import read_bundle
from orchestrator.bundle.spans import OpSpan, busy_of, spans_of
from tests.support import page_bundles
from tests.support.bundles import RECORDED
from worker.protocol.events import Op


def a_span(start_ms: float, took_ms: float, stage: int = 0) -> OpSpan:
    op = Op(op="x", duration_ms=took_ms, idle_ms_before=0, ok=True, in_bytes=0, out_bytes=0)
    return OpSpan(stage, start_ms, took_ms, op)


class Tags(HTMLParser):
    """Collects every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize(
    ("width_ms", "labels"),
    [
        (0.0, ["0"]),
        (12.0, ["0", "2.00 ms", "4.00 ms", "6.00 ms", "8.00 ms", "10 ms", "12 ms"]),
        (7400.0, ["0", "2 s", "4 s", "6 s"]),
        (59_000.0, ["0", "10 s", "20 s", "30 s", "40 s", "50 s"]),
        (400_000.0, ["0", "2:00 min", "4:00 min", "6:00 min"]),
        (9_000_000.0, ["0", "30:00 min", "1:00:00", "1:30:00", "2:00:00", "2:30:00"]),
    ],
)
def test_ticks_stand_at_round_times(width_ms: float, labels: list[str]) -> None:
    assert [tick.label for tick in Axis(100.0, 100.0 + width_ms, 100.0).ticks()] == labels


def test_a_path_shows_the_share_of_time_that_is_covered() -> None:
    axis = Axis(0.0, float(BINS), 0.0)
    spans = [a_span(0, 2), a_span(1, 1), a_span(10, 0.5), a_span(20, 0), a_span(498, 9)]
    assert density_path(spans, axis) == (
        "M0 100H0V0.0H4V100.0H20V50.0H22V100.0H40V92.0H42V100.0H996V0.0H1000V100Z"
    )


def test_a_path_counts_what_is_under_way_at_once() -> None:
    axis = Axis(0.0, float(BINS), 0.0)
    path, most = in_flight_path([(0.0, 10.0), (5.0, 20.0), (20.0, 30.0)], axis)
    assert (path, most) == ("M0 100H0V50.0H10V0.0H22V50.0H62V100.0H1000V100Z", 2)


def test_a_stage_is_busy_once_where_ops_overlap() -> None:
    spans = (a_span(0, 10), a_span(5, 10), a_span(30, 10), a_span(2, 4, stage=1))
    ordered = tuple(sorted(spans, key=lambda span: span.start_ms))
    assert [(busy.stage, busy.share) for busy in busy_of(ordered)] == [(0, 0.625), (1, 0.1)]


def test_memory_is_drawn_against_what_bounds_it(tmp_path: Path) -> None:
    run = page_bundles.WideRun(tmp_path / "b", ("gpu1.lan",))
    run.start(0, born_ms=0.0)
    run.beat(0, 10_000.0, 2000.0)
    run.close(10_000.0, 0)
    bundle = read_bundle(tmp_path / "b")
    begin_ms = bundle.manifest.wall_ms
    axis = Axis(begin_ms, begin_ms + 10_000.4, begin_ms)
    (curve,) = memory_curves(processes_of(bundle), axis)
    # The top of the scale is 6 % above the 4 GB that were free.
    assert (curve.lines, curve.limit_y, curve.summary) == (
        ("360.03,64.62 1000,52.83",),
        5.66,
        "2 GB, at most 2 GB; 4 GB free (cgroup)",
    )


def test_a_hosts_clock_does_not_matter(tmp_path: Path) -> None:
    page_bundles.healthy(tmp_path / "b")
    bundle = read_bundle(tmp_path / "b")
    spans = spans_of(processes_of(bundle))
    sent = sorted((kept.value.wall_ms, kept.value.stage) for kept in bundle.ops)
    off_ms = [span.start_ms - wall_ms for span, (wall_ms, _) in zip(spans, sent, strict=True)]
    assert 0 <= min(off_ms) <= max(off_ms) < 0.7


def test_what_happened_is_told_in_order(tmp_path: Path) -> None:
    page_bundles.recovered(tmp_path / "b")
    moments = moments_of(read_bundle(tmp_path / "b"))
    assert [(moment.stage, moment.kind) for moment in moments] == [
        (1, "lost"),
        (1, "ended"),
        (1, "failed"),
        (1, "back"),
    ]


@pytest.mark.parametrize("name", ["killed_orchestrator", "newer_version", "unreachable", "hung"])
def test_odd_bundles_have_their_page(name: str) -> None:
    text = page_of(read_bundle(RECORDED / name))
    tags = [tag for tag, _ in Tags(text).found]
    assert (tags.count("h1"), tags.count("main")) == (1, 1)


def test_nothing_foreign_becomes_markup_and_nothing_is_loaded(tmp_path: Path) -> None:
    page_bundles.hostile(tmp_path / "b")
    text = page_of(read_bundle(tmp_path / "b"))
    found = Tags(text).found
    addresses = {v for _, attrs in found for k, v in attrs.items() if k in ("href", "src") and v}
    handlers = [k for _, attrs in found for k in attrs if k.startswith("on") or k == "style"]
    tags = {tag for tag, _ in found}
    assert handlers == []
    assert all(address.startswith("#") for address in addresses)
    assert tags.isdisjoint({"img", "iframe", "link", "object", "base", "form", "input"})
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08\x1b\u2028]", text)


def test_the_policy_allows_this_style_and_this_script_alone(tmp_path: Path) -> None:
    page_bundles.crashed(tmp_path / "b")
    text = page_of(read_bundle(tmp_path / "b"))
    bodies = [
        re.search(pattern, text, re.DOTALL)
        for pattern in ("<style>(.*?)</style>", "<script>(.*?)</script>")
    ]
    hashes = [
        base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        for body in bodies
        if body is not None
    ]
    policies = [attrs["content"] for tag, attrs in Tags(text).found if "http-equiv" in attrs]
    own = f"style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'"
    assert policies == [f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"]
