"""What setup installs: the pins, and the running packages as a wheel."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.doctor.mend import Mend
from orchestrator.doctor.subject import subjects_of
from orchestrator.hosts import parse_hosts
from orchestrator.setting import Setting
from orchestrator.setup.equip import Goal, Outcome, equip, plan_words
from orchestrator.setup.installer import is_version, news_of
from orchestrator.setup.pins import read_pins
from orchestrator.setup.wheel import own_wheel
from orchestrator.specs import WorkerOptions
from orchestrator.stage.gate import StartGate
from orchestrator.stage_specs import Ways
from orchestrator.timeouts import Timeouts
from tools.pins import PINS, ROOT, pins_text


def test_the_pins_are_those_of_pyproject_and_constraints() -> None:
    assert PINS.read_text() == pins_text(ROOT), "run python -m tools.pins"


def test_everything_that_is_required_is_pinned_exactly() -> None:
    fields = Goal(pins=read_pins(), wheel=own_wheel(read_pins())).fields()
    constrained = {line.split("==")[0] for line in fields["constraints"]}
    assert not constrained & set(fields["requires"])
    assert fields["requires"]["torch"] == read_pins().exact()["torch"]


def test_a_build_of_torch_is_asked_for_by_its_name() -> None:
    pins = read_pins()
    goal = Goal(pins=pins, wheel=own_wheel(pins), torch="cpu")
    assert goal.fields()["requires"]["torch"] == f"{pins.exact()['torch']}+cpu"


def test_the_wheel_holds_the_running_packages_and_says_what_they_need() -> None:
    with zipfile.ZipFile(io.BytesIO(own_wheel(read_pins()).data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    info = f"stageline-{__version__}.dist-info"
    own = {name: data for name, data in files.items() if not name.startswith(info)}
    sources = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for package in ("worker", "orchestrator")
        for path in Path(ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert own == sources
    metadata = files[f"{info}/METADATA"].decode()
    assert [line for line in metadata.splitlines() if line.startswith("Requires-Dist")] == [
        f"Requires-Dist: {text}" for text in read_pins().requires
    ]


def test_the_record_of_the_wheel_is_true() -> None:
    with zipfile.ZipFile(io.BytesIO(own_wheel(read_pins()).data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    record = f"stageline-{__version__}.dist-info/RECORD"

    def line(name: str, data: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(data)}"

    expected = [line(name, data) for name, data in files.items() if name != record]
    assert files[record].decode().splitlines() == [*expected, f"{record},,"]


@pytest.mark.parametrize(
    ("found", "wanted", "is_it"),
    [
        ("2.13.0", "2.13.0", True),
        ("2.13.0+cu130", "2.13.0", True),
        ("2.13.0", "2.13.0+cpu", False),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.1", "2.13.0", False),
        ("", "2.13.0", False),
    ],
)
def test_any_build_will_do_unless_one_is_named(found: str, wanted: str, is_it: bool) -> None:
    assert is_version(found, wanted) is is_it


def test_news_do_not_name_the_index() -> None:
    line = "Downloading https://user:secret@index.lan/simple/torch-2.13.0-cp311.whl (190.1 MB)"
    assert news_of(line) == "Downloading torch-2.13.0-cp311.whl (190.1 MB)"


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        (["torch==2", "jinja2==3"], "torch==2, jinja2==3, stageline"),
        (list("abcde"), "a, b, c, 2 more, stageline"),
        ([], "the packages again, which were changed, stageline"),
    ],
)
def test_a_plan_names_no_more_packages_than_a_line_holds(lacking: list[str], words: str) -> None:
    found = {"todo": ["packages"], "lacking": lacking, "is_broken": False, "venv": "/v"}
    assert plan_words(found) == f"gets {words} {__version__}"


def test_a_python_that_was_asked_for_and_is_not_there_is_not_to_be_installed() -> None:
    ways = Ways(hosts_name="h.txt")
    entries = parse_hosts(b"command=env")
    (subject,) = subjects_of(Setting(entries, WorkerOptions(), ways, Timeouts()))
    goal = Goal(pins=read_pins(), wheel=own_wheel(read_pins()), python="/no/such/python")
    limits = {"meet_s": 20.0, "limit_s": 20.0}
    equipped = asyncio.run(
        equip(Mend(subject, "h.txt"), goal, **limits, gate=StartGate(), on_step=print)
    )
    step = equipped.text.rpartition("; ")[2]
    assert (equipped.outcome, step) == (
        Outcome.FAILED,
        "give another --python than /no/such/python",
    )
