"""What Stageline needs: ranges that were tested, and the exact set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

OLDEST_PYTHON = (3, 11)
# The orchestrator's own needs, and (zstandard) one that a worker can do without.
_NOT_FOR_WORKERS = (
    "rich",
    "packaging",
    "zstandard",
    "starlette",
    "uvicorn",
    "prometheus-client",
    "llguidance",
)


@dataclass(frozen=True, slots=True)
class Pins:
    """The tested dependencies, by canonical name.

    Attributes:
        python: versions of Python, as `>=3.11`.
        requires: the direct ones, as written in the package's metadata.
        constraints: one exact version each, as `name==version`, of everything they may bring.
        scripts: program -> `module:function`.
    """

    python: str
    requires: tuple[str, ...]
    constraints: tuple[str, ...]
    scripts: dict[str, str]

    def ranges(self) -> dict[str, SpecifierSet]:
        """Return what versions a worker can be run with, by name of the distribution."""
        needed = [Requirement(text) for text in self.requires]
        return {need.name: need.specifier for need in needed if need.name not in _NOT_FOR_WORKERS}

    def exact(self) -> dict[str, str]:
        """Return the tested version of each distribution, by canonical name."""
        pairs = (line.split("==") for line in self.constraints)
        return {canonicalize_name(name): version for name, version in pairs}


def read_pins() -> Pins:
    """Return what this version of Stageline was tested with."""
    fields = json.loads(files("orchestrator.setup").joinpath("pins.json").read_text("utf-8"))
    return Pins(
        python=fields["python"],
        requires=tuple(fields["requires"]),
        constraints=tuple(fields["constraints"]),
        scripts=dict(fields["scripts"]),
    )
