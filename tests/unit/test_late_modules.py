"""A stand-in answers what is known of a module, and brings the module for all else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.backends.transformers.late_modules import LateModule, Within, stand_in

PACKAGE = "late_package_of_a_test"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text(f"from {PACKAGE} import inner\nknown, other = 'true', 5\n")
    (folder / "inner.py").write_text("runs = []\nruns.append(1)\n")
    (folder / "apart.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    stand_in(PACKAGE, {"known": "beforehand"})
    yield PACKAGE
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_what_is_known_brings_nothing(package: str) -> None:
    late = importlib.import_module(package)
    assert (late.known, type(late), f"{package}.inner" in sys.modules) == (
        "beforehand",
        LateModule,
        False,
    )


def test_any_other_attribute_brings_the_module_and_the_stand_in_goes_on_as_it(package: str) -> None:
    late = importlib.import_module(package)
    found = (late.other, late.known, type(sys.modules[package]) is LateModule)
    assert found == (5, "true", False)


def test_a_module_within_that_the_package_imports_itself_runs_once(package: str) -> None:
    inner = importlib.import_module(f"{package}.inner")
    true = sys.modules[package]
    is_own = inner.__spec__ is not None and not isinstance(inner.__spec__.loader, Within)
    assert (inner.runs, inner is true.inner, is_own) == ([1], True, True)


def test_a_module_within_that_it_does_not_import_is_found(package: str) -> None:
    assert importlib.import_module(f"{package}.apart").value == 7


def test_a_module_that_others_need_is_itself_before_they_are(package: str) -> None:
    needing = f"{package}_needing"
    Path(sys.path[0], f"{needing}.py").write_text(f"from {package} import known\n")
    stand_in(needing, {}, needs=[package])
    try:
        assert importlib.import_module(needing).known == "true"
    finally:
        del sys.modules[needing]


def test_a_module_that_is_not_there_gets_no_stand_in() -> None:
    stand_in("no_module_of_this_name", {})
    assert "no_module_of_this_name" not in sys.modules
