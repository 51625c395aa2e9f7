"""Whatever stands in a bundle, its page and its trace are made, and nothing in it is markup."""

from __future__ import annotations

import json
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bundle.html.page import page_of
from orchestrator.bundle.reader import read_bundle
from orchestrator.bundle.redact import Redactor
from orchestrator.bundle.trace import trace_json
from tests.support import page_bundles

NASTY = (
    *(None, True, -1, 0, 1e-300, 1e14, 1e308, float("nan"), float("inf"), 10**30),
    *("", "</script><img src=x>", "\ud800", "\u202e", "x" * 5000, [{}], {"a": {"b": [1e400]}}),
)


def recorded() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        run = page_bundles.WideRun(Path(folder) / "b", ("gpu1.lan", "gpu2.lan"))
        ready_ms = max(run.start(stage) for stage in range(2))
        lost_ms = run.tokens(2, ready_ms)
        run.lose(1, lost_ms, "was killed")
        back_ms = run.bring_back(1, lost_ms, "gpu3.lan", 3)
        run.request(ready_ms, run.tokens(2, back_ms), 4)
        run.beat(0, back_ms + 100, 1700.0)
        run.close(back_ms + 200, 0)
        files = sorted(p for p in Path(folder, "b").rglob("*") if p.is_file())
        return {p.relative_to(Path(folder, "b")).as_posix(): p.read_bytes() for p in files}


FILES = recorded()
NAMES = sorted(FILES)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)


@settings(max_examples=40)
@given(st.data())
def test_a_page_and_a_trace_are_made_of_any_values(data: st.DataObject) -> None:
    files = dict(FILES)
    for name in data.draw(st.sets(st.sampled_from(NAMES), min_size=1, max_size=3)):
        whole = name.endswith(".json")
        lines = [files[name]] if whole else files[name].splitlines()
        for number in data.draw(st.sets(st.integers(0, len(lines) - 1), max_size=6)):
            record = json.loads(lines[number])
            inner = record.get("line", record) or record
            for field in data.draw(st.sets(st.sampled_from(sorted(inner)), max_size=3)):
                inner[field] = data.draw(st.sampled_from(NASTY))
            lines[number] = json.dumps(record).encode()
        files[name] = b"\n".join(lines)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        bundle = read_bundle(Path(folder))
        assert "img" not in Tags(page_of(bundle)).found
        for event in json.loads(trace_json(bundle))["traceEvents"]:
            assert event.get("ts", 0) >= 0 <= event.get("dur", 0)


@given(st.text(max_size=60), st.sampled_from(["gpu1.lan", "bob@gpu1.lan", "/home/bob/x"]))
def test_what_is_taken_out_stays_out(text: str, secret: str) -> None:
    redactor = Redactor(["bob"], ["gpu1.lan"], hide_hosts=True)
    for line in (f"{text} {secret} {text}", json.dumps({"a": f"{text} {secret}"})):
        told = redactor.line(line)
        assert "gpu1" not in told
        assert "bob" not in told.replace(text, "")
