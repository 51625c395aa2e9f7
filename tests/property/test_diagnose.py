"""Whatever becomes of a bundle, its diagnosis is given, and in order."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bundle.diagnose import diagnose
from orchestrator.bundle.reader import read_bundle
from tests.support.bundles import RECORDED
from tests.support.faults.record import RECORDED as RUNS

BUNDLES = sorted([*RECORDED.iterdir(), *RUNS.iterdir()])
PIECES = (
    b"",
    b"\n",
    b"{}\n",
    b"null\n",
    b'{"stage":0}\n',
    b"\xff",
    b'"',
    b"9" * 30,
    b"-1",
    b"1e999",
)
STRANGER = b'{"stage":3,"host":"x","wall_ms":5,"line":{"event":"from_the_future","stage":3}}\n'


@cache
def files_of(bundle: Path) -> dict[str, bytes]:
    found = (path for path in sorted(bundle.rglob("*")) if path.is_file())
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in found}


@st.composite
def mutilated(draw: st.DrawFn) -> dict[str, bytes]:
    """Some files of a bundle gone, cut, shuffled, repeated, overwritten, or another bundle's."""
    files = dict(files_of(draw(st.sampled_from(BUNDLES))))
    for name in draw(st.lists(st.sampled_from(sorted(files)), max_size=4)):
        data = files.get(name, b"")
        lines = data.splitlines(keepends=True)
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 7)):
            case 0:
                files.pop(name, None)
            case 1:
                files[name] = data[:at]
            case 2:
                files[name] = b"".join(draw(st.permutations(lines[:60])))
            case 3:
                files[name] = data + data
            case 4:
                files[name] = data[:at] + draw(st.sampled_from(PIECES)) + data[at + 1 :]
            case 5:
                files[name] = b"".join(lines[::2])
            case 6:
                files[name] = STRANGER + data
            case 7:
                files[name] = files_of(draw(st.sampled_from(BUNDLES))).get(name, b"")
    return files


@settings(max_examples=150)
@given(mutilated())
def test_a_mutilated_bundle_is_diagnosed(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        findings = diagnose(read_bundle(Path(folder)))
        assert [finding.rank for finding in findings] == sorted(f.rank for f in findings)
        assert all(finding.cause and finding.sentence and finding.advice for finding in findings)
