"""Import transformers without reading all its model files, where this was done here before.

`import transformers` reads 2,600 files to learn which class is in which: half a second of processor
time. What it found is remembered by size and time of every one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from worker.file_stamps import source_stamps, stamp
from worker.remembered import Remembered

_SCANNING = "transformers.utils.import_utils"
_KIND = "model-files"
# names of classes by module, for each set of packages that they need
Found = dict[frozenset[str], dict[str, set[str]]]


@contextmanager
def remembered_scan(remembered: Remembered) -> Iterator[None]:
    """Have `import transformers`, within the block, take what an earlier one found."""
    finder = _Patching(remembered)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.take_back()


class _Patching(MetaPathFinder):
    """Puts another function in the place of the one that scans, as soon as its module is there."""

    def __init__(self, remembered: Remembered) -> None:
        self._remembered = remembered
        self._scanning: Any = None
        self._scan: Any = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where that module is, with a loader that does this after loading."""
        found = PathFinder.find_spec(name, path, target) if name == _SCANNING else None
        if found is not None and found.loader is not None:
            loader: Any = found.loader
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self._patch(module)

            loader.exec_module = exec_module
        return found

    def take_back(self) -> None:
        """Leave the module as it was."""
        if self._scanning is not None:
            self._scanning.define_import_structure = self._scan

    def _patch(self, module: Any) -> None:
        self._scanning, self._scan = module, module.define_import_structure
        module.define_import_structure = self._found

    def _found(self, module_path: Path, prefix: str | None = None) -> Found:
        """Return what was found before, or scan and remember."""
        try:
            depends = [
                str(prefix),
                stamp(Path(self._scanning.__file__)),
                source_stamps(module_path, within=True),
            ]
        except OSError:
            return self._scan(module_path, prefix)  # type: ignore[no-any-return]
        kept = self._remembered.get(_KIND, depends)
        if kept is not None:
            with suppress(Exception):  # of another form: as good as absent
                return from_json(kept)
        found: Found = self._scan(module_path, prefix)
        self._remembered.put(_KIND, depends, to_json(found))
        return found


def to_json(found: Found) -> list[Any]:
    """Return it as values of JSON."""
    return [
        [sorted(needs), {module: sorted(names) for module, names in modules.items()}]
        for needs, modules in found.items()
    ]


def from_json(kept: list[Any]) -> Found:
    """Return what `to_json` was given."""
    return {
        frozenset(needs): {module: set(names) for module, names in modules.items()}
        for needs, modules in kept
    }
