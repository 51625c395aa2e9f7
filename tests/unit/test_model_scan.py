"""Model files are read again as soon as one of them, or what reads them, is another."""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from worker.backends.transformers.late_patterns import LatePattern, compile_late
from worker.backends.transformers.model_scan import Found, _Patching
from worker.remembered import Remembered

ROOT = Path(__file__).parents[2]
IMPORTED = """
import json, sys
from pathlib import Path
from worker.backends.transformers.late_patterns import LatePattern, compile_late
from worker.backends.transformers.model_scan import remembered_scan
from worker.remembered import Remembered

with remembered_scan(Remembered(Path(sys.argv[1]))):
    import transformers
from transformers.utils import import_utils
print(json.dumps({
    "classes": sorted(transformers._class_to_module.items()),
    "missing": sorted((name, sorted(map(str, missing)))
                      for name, missing in transformers._object_missing_backend.items()),
    "read": import_utils.create_import_structure_from_path.__module__,
    "finders": [type(finder).__name__ for finder in sys.meta_path].count("_Patching"),
    "scan": import_utils.define_import_structure.__name__,
}))
"""


def imported(folder: Path) -> dict[str, object]:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTED, str(folder)], cwd=ROOT, capture_output=True, check=True
    )
    found: dict[str, object] = json.loads(ran.stdout)
    return found


def test_a_remembered_scan_gives_transformers_what_a_scan_does(tmp_path: Path) -> None:
    first = imported(tmp_path)
    (kept,) = tmp_path.iterdir()
    written_ns = kept.stat().st_mtime_ns
    second = imported(tmp_path)
    assert (second, kept.stat().st_mtime_ns) == (first, written_ns)
    assert (first["finders"], first["scan"]) == (0, "define_import_structure")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("llama", "opt"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / f"modeling_{name}.py").write_text("class A: pass\n")
    (tmp_path / "import_utils.py").write_text("def scan(): ...\n")
    return tmp_path / "models"


def later(path: Path) -> None:
    """Have a file be of another time, as when it is written with as many bytes."""
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


@pytest.mark.parametrize(
    ("change", "scans"),
    [
        (lambda models: None, 1),
        (lambda models: later(models / "opt" / "modeling_opt.py"), 2),
        (lambda models: later(models.parent / "import_utils.py"), 2),
        (lambda models: (models / "opt" / "another.py").write_text(""), 2),
        (lambda models: (models / "opt" / "modeling_opt.py").unlink(), 2),
    ],
)
def test_a_change_has_the_files_read_again(
    models: Path, change: Callable[[Path], object], scans: int
) -> None:
    found: list[Found] = []

    def scan(folder: Path, prefix: str | None = None) -> Found:
        found.append({frozenset({"torch"}): {f"{prefix}.{len(found)}": {"A"}}})
        return found[-1]

    scanning = SimpleNamespace(
        __file__=str(models.parent / "import_utils.py"), define_import_structure=scan
    )
    finder = _Patching(Remembered(models.parent / "kept"))
    finder._patch(scanning)
    first = scanning.define_import_structure(models, prefix="models")
    change(models)
    second = scanning.define_import_structure(models, prefix="models")
    finder.take_back()
    assert (len(found), first, second) == (scans, found[0], found[-1])
    assert scanning.define_import_structure is scan


def test_names_are_matched_by_late_patterns_as_by_compiled_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loading = importlib.import_module("transformers.core_model_loading")
    mapping = importlib.import_module("transformers.conversion_mapping")
    monkeypatch.setattr(loading, "re", loading.re)
    names = ["model.layers.3.block_sparse_moe.experts.0.w1.weight", "transformer.h.1.attn.c.bias"]
    found = []
    for is_late in (False, True):
        if is_late:
            compile_late()
        tables = mapping._build_checkpoint_conversion_mapping()
        found.append(
            {
                model_type: [entry.rename_source_key(name) for entry in entries for name in names]
                for model_type, entries in tables.items()
            }
        )
    kinds = {type(entry.compiled_sources) for entries in tables.values() for entry in entries}
    assert (found[1], kinds) == (found[0], {LatePattern})


def test_a_late_pattern_is_one_pattern_however_it_is_copied() -> None:
    pattern = LatePattern(r"(?P<g0>layers\.\d+)")
    copies = [copy.copy(pattern), copy.deepcopy([pattern])[0]]
    assert [each is pattern for each in copies] == [True, True]
    assert (pattern.groupindex["g0"], pattern.search("layers.x")) == (1, None)
    with pytest.raises(re.error):
        LatePattern("(").search("")
