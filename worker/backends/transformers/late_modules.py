"""Import a module when more of it is asked for than what is known of it beforehand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class LateModule(ModuleType):
    """Stands in the place of a module that is not imported yet.

    It has some of the module's attributes, which do what the true ones do as long as the module is
    not imported. Any other one, and any module within it, brings the true one in its place; what
    this one is then still asked for is the true one's as well.
    """

    def __init__(self, spec: ModuleSpec, known: Mapping[str, Any], needs: Sequence[str]) -> None:
        super().__init__(spec.name)
        vars(self).update(known, __spec__=spec, __file__=spec.origin, _needs=tuple(needs))
        if spec.submodule_search_locations is not None:
            self.__path__: list[str] = []  # so that `Within` is asked for what is there

    def __getattr__(self, name: str) -> Any:
        """Return what the true module has."""
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(true_module(self.__name__), name)


def stand_in(name: str, known: Mapping[str, Any], needs: Sequence[str] = ()) -> None:
    """Put a stand-in in the place of a module; one that is imported, or not there, is left alone.

    Args:
        name: with all packages around it imported, or stood in for.
        known: its attributes.
        needs: modules that take the place of their stand-ins before it does: what imports it may
            keep what it takes from them.
    """
    if name in sys.modules:
        return
    spec = find_spec(name)
    if spec is not None:
        sys.modules[name] = LateModule(spec, known, needs)
        if spec.submodule_search_locations is not None:
            sys.meta_path.insert(0, Within(name))


def true_module(name: str) -> ModuleType:
    """Return the module itself, imported now where a stand-in had its place."""
    late = sys.modules.get(name)
    if not isinstance(late, LateModule):
        return importlib.import_module(name)
    for needed in vars(late)["_needs"]:
        true_module(needed)
    if sys.modules[name] is late:
        del sys.modules[name]
    try:
        true = importlib.import_module(name)
    except BaseException:
        sys.modules[name] = late
        raise
    vars(late).update(vars(true))  # whoever has it goes on with the true one's
    return true


class Within(MetaPathFinder, Loader):
    """Finds modules in a package that has a stand-in: by importing that package itself."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of the package is; None where this one has no say."""
        if not name.startswith(f"{self._package}."):
            return None
        if not isinstance(sys.modules.get(self._package), LateModule):
            return None
        true = true_module(self._package)
        found = sys.modules.get(name)
        if found is None:
            return PathFinder.find_spec(name, true.__path__, target)
        # the package has imported it: it must not be run a second time
        self._specs[name] = found.__spec__
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that is there."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it was."""
        module.__spec__ = self._specs.pop(module.__name__)
