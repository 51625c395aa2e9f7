"""Set up one host: find its Python, look what is there, install what is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator import __version__
from orchestrator.doctor.mend import Mend
from orchestrator.setup.pins import OLDEST_PYTHON, Pins
from orchestrator.setup.wheel import Wheel
from orchestrator.stage.gate import StartGate
from orchestrator.transport.interpreter import SETUP_VENV
from orchestrator.visit.check import Check
from orchestrator.visit.departure import VisitFailed
from orchestrator.visit.greeting import Interpreter
from orchestrator.visit.meeting import met
from orchestrator.visit.visit import Visit

ANSWER_S = 150.0
# The program tells every five seconds that it lives.
SILENCE_S = 60.0
# Packages that a line names; `--json` names all.
_NAMED = 3
# The system's own first; else a newer one that stands beside an old one.
_FIND = (
    "for p in python3 python3.14 python3.13 python3.12 python3.11; do "
    'command -v "$p" >/dev/null 2>&1 && "$p" -c "import sys; '
    f'sys.exit(sys.version_info < {OLDEST_PYTHON})" </dev/null >/dev/null 2>&1 && break; '
    'p=python3; done; exec "$p" "$@"'
)


class Outcome(StrEnum):
    """How a host's setup ended."""

    INSTALLED = "installed"
    UNCHANGED = "unchanged"
    PLANNED = "planned"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Equipped:
    """What came of one host.

    Attributes:
        text: a phrase behind the host's name.
        packages: versions that are there now, by canonical name.
        lacking: what is to be installed or exchanged, as `name==version`.
    """

    outcome: Outcome
    text: str
    packages: dict[str, str] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What every host is to have.

    Attributes:
        torch: the build of torch, as `cpu`; "" is what the host's index gives.
        python: the interpreter to make the venv with, or None for a fitting one.
        only_look: whether nothing is to be changed.
    """

    pins: Pins
    wheel: Wheel
    torch: str = ""
    python: str | None = None
    only_look: bool = False

    def fields(self) -> dict[str, Any]:
        """Return what the program on the host is told."""
        direct = [canonicalize_name(Requirement(text).name) for text in self.pins.requires]
        exact = self.pins.exact()
        if self.torch:
            exact["torch"] += f"+{self.torch}"
        return {
            "venv": SETUP_VENV,
            # What stands among the constraints too is said to conflict where an index lacks it.
            "requires": {name: exact[name] for name in direct},
            "constraints": [
                f"{name}=={version}" for name, version in exact.items() if name not in direct
            ],
            "code": self.wheel.sha256,
            "modules": ["torch", "transformers", "worker.protocol", "orchestrator.cli"],
        }


async def equip(
    mend: Mend,
    goal: Goal,
    *,
    meet_s: float,
    limit_s: float,
    gate: StartGate,
    on_step: Callable[[str], None],
) -> Equipped:
    """Set up one host; whatever goes wrong is the outcome.

    Args:
        mend: the host.
        goal: what it is to have.
        meet_s: how long it may take until Python runs there.
        limit_s: how long the whole installation may take.
        gate: bounds the logins of all hosts together.
        on_step: told of each step there.
    """
    spec = mend.subject.spec
    if spec.transport == "local":
        return Equipped(Outcome.SKIPPED, "runs with this Python, which has what it needs")
    if spec.python is not None:
        return Equipped(
            Outcome.SKIPPED,
            f"names its own Python (python={spec.python} in {mend.subject.name}), which is left "
            "as it is; leave python= out to have one made",
        )
    finder = (goal.python,) if goal.python else ("sh", "-c", _FIND, "sh")
    try:
        async with met(spec, finder, meet_s, gate) as (visit, interpreter):
            if interpreter.version[:2] < OLDEST_PYTHON:
                return _too_old(interpreter)
            return await _work(visit, mend, goal, limit_s, on_step)
    except VisitFailed as failed:
        is_given = goal.python is not None and failed.check is Check.PYTHON and not failed.lost
        step = f"give another --python than {goal.python}" if is_given else mend.visit(failed)
        return Equipped(
            Outcome.FAILED, failed.cause.partition("; ")[0] + f"; {step}" if step else failed.cause
        )
    except TimeoutError:
        return Equipped(Outcome.FAILED, "stopped answering; run setup again, it goes on from there")


async def _work(
    visit: Visit, mend: Mend, goal: Goal, limit_s: float, on_step: Callable[[str], None]
) -> Equipped:
    await visit.teach(files("orchestrator.setup").joinpath("installer.py").read_text(), ANSWER_S)
    visit.ask(goal.fields())
    found = await visit.hear(ANSWER_S)
    if "error" in found:
        return _refused(found["error"], mend)
    if not found["todo"]:
        return Equipped(
            Outcome.UNCHANGED,
            f"has stageline {__version__} and its packages already; nothing to do",
            found["packages"],
        )
    if goal.only_look:
        lacking = tuple(found["lacking"])
        return Equipped(Outcome.PLANNED, plan_words(found), found["packages"], lacking)
    begun = time.monotonic()
    on_step(plan_words(found))
    visit.ask({"bytes": len(goal.wheel.data), "name": goal.wheel.name}, goal.wheel.data)
    while time.monotonic() - begun < limit_s:
        told = await visit.hear(SILENCE_S)
        if "step" in told:
            on_step(str(told["step"]))
        elif "error" in told:
            return _refused(told["error"], mend)
        elif "done" in told:
            return _installed(told, time.monotonic() - begun)
    visit.cut()
    return Equipped(
        Outcome.FAILED,
        f"was not done within {limit_s:g} s; run setup again, it goes on from there",
    )


def _too_old(interpreter: Interpreter) -> Equipped:
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Equipped(
        Outcome.FAILED,
        f"has Python {interpreter.words} as {interpreter.path}, and needs {oldest} or newer; "
        "install one there (python3.11 and newer are found by themselves), or name one with "
        "--python",
    )


def _refused(reason: str, mend: Mend) -> Equipped:
    step = ""
    if reason.startswith("cannot install with pip"):
        python = f"{SETUP_VENV}/bin/python"
        step = f"; its index: {mend.there(python, '-m', 'pip', 'config', 'list')}"
    if "without ensurepip" in reason:
        name = reason.split()[1]
        step = f"; {mend.shell(f'sudo apt-get install -y {name}-venv')}"
    return Equipped(Outcome.FAILED, reason + step)


def plan_words(found: dict[str, Any]) -> str:
    """Return what a host is to get, with no more packages than a line holds."""
    parts = []
    if "venv" in found["todo"]:
        again = "a new venv for the broken one" if found["is_broken"] else "a venv"
        parts.append(f"{again} in {found['venv']}")
    if "packages" in found["todo"]:
        lacking = found["lacking"]
        more = len(lacking) - _NAMED
        parts += lacking[:_NAMED] or ["the packages again, which were changed"]
        parts += [f"{more} more"] if more > 0 else []
    parts.append(f"stageline {__version__}")
    return f"gets {', '.join(parts)}"


def _installed(told: dict[str, Any], took_s: float) -> Equipped:
    packages = told["packages"]
    return Equipped(
        Outcome.INSTALLED,
        f"has stageline {__version__}, torch {packages.get('torch')} and transformers "
        f"{packages.get('transformers')} in {told['venv']} now ({took_s:.0f} s)",
        packages,
    )
