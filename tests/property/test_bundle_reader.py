"""Whatever becomes of the files of a bundle, it can be read and shown."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bundle.reader import read_bundle
from orchestrator.bundle.report import report_json, report_of
from orchestrator.bundle.screen import PlainScreen
from orchestrator.bundle.show import show
from tests.support.bundles import RECORDED, Run, killed_worker

FILES = {
    path.relative_to(RECORDED / "killed_worker").as_posix(): path.read_bytes()
    for path in sorted((RECORDED / "killed_worker").rglob("*"))
    if path.is_file()
} | {"stderr/stage-0.log": b"a\nb\n", "requests.jsonl": b"{}\n"}
NASTY = (
    b"null",
    b"-1",
    b"1e400",
    b"-1e308",
    b"NaN",
    b"9" * 400,
    b'"\\ud800"',
    b"[[[[",
    b'{"a":' * 2000,
    b"\xff\xfe",
    b"\x00",
    b"\n",
    b"{}",
    b"true",
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, bytes | None]:
    """Some files cut, overwritten in places, emptied, gone (None) or made a folder (b"/")."""
    files: dict[str, bytes | None] = dict(FILES)
    for name in draw(st.sets(st.sampled_from(sorted(FILES)), min_size=1)):
        data = FILES[name]
        at, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        piece = draw(st.sampled_from(NASTY) | st.binary(max_size=20))
        files[name] = draw(
            st.sampled_from([data[:at], data[:at] + piece + data[end:], piece, b"", None, b"/"])
        )
    return files


def put(path: Path, data: bytes | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if data == b"/":
        path.mkdir()
    elif data is not None:
        path.write_bytes(data)


def tell(path: Path) -> None:
    report = report_of(read_bundle(path))
    show(report, PlainScreen(io.StringIO()))
    json.loads(report_json(report))


@settings(max_examples=100)
@given(damaged())
def test_a_damaged_bundle_is_read_and_shown(files: dict[str, bytes | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            put(Path(folder) / name, data)
        tell(Path(folder))


@settings(max_examples=100)
@given(st.data())
def test_a_field_of_another_kind_is_read_and_shown(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(n for n in FILES if n.endswith(".jsonl"))))
    lines = FILES[name].splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    record = json.loads(lines[number])
    inner = record.get("line", record) or {"stage": 0}
    field = data.draw(st.sampled_from(sorted(inner)))
    inner[field] = data.draw(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([{}])
    )
    lines[number] = json.dumps(record).encode()
    with tempfile.TemporaryDirectory() as folder:
        for other, content in FILES.items():
            put(Path(folder) / other, b"\n".join(lines) if other == name else content)
        tell(Path(folder))


def test_every_prefix_of_the_events_is_read(tmp_path: Path) -> None:
    killed_worker(Run(tmp_path / "b"))
    events = tmp_path / "b" / "events.jsonl"
    whole = events.read_bytes()
    for end in range(0, len(whole), 97):
        events.write_bytes(whole[:end])
        bundle = read_bundle(tmp_path / "b")
        assert len(bundle.lines) + len(bundle.problems) == len(whole[:end].splitlines())
