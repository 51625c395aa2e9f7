"""Every kind of run by name, and how expensive it is to make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.faults import healthy_kinds as healthy
from tests.support.faults import run_kinds as runs
from tests.support.faults import ssh_kinds as ssh
from tests.support.faults import stage_kinds as stages
from tests.support.faults.lab import Lab
from tests.support.faults.truth import HEALTHY, TRUTH

Kind = Callable[[Lab], Path]
STUB_MODULES = (stages, runs, ssh, healthy)


def kind_of(name: str) -> Kind:
    """Return what makes the kind of that name; the model's are imported late, with torch."""
    for module in STUB_MODULES:
        if hasattr(module, name):
            return _named(name, vars(module))
    from tests.support.faults import model_kinds

    return _named(name, vars(model_kinds))


def _named(name: str, members: dict[str, Kind]) -> Kind:
    return members[name]


def names() -> tuple[str, ...]:
    """Return every name, the healthy ones last."""
    return (*TRUTH, *HEALTHY)


@contextmanager
def made(name: str, folder: Path) -> Iterator[Path]:
    """Make a run of that kind in an empty folder; yield its bundle."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        yield kind_of(name)(Lab(folder, stack))
