"""Judge a host's Python, its packages and the code that will run there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from orchestrator import __version__
from orchestrator.doctor.mend import Mend
from orchestrator.doctor.result import HostReport, Result, Status
from orchestrator.plan import counted, is_crowded
from orchestrator.setup.pins import OLDEST_PYTHON, Pins
from orchestrator.visit.check import Check
from orchestrator.visit.greeting import Interpreter

DISTRIBUTION = "stageline"
# What these are for; without one the other quantizations work.
_ONLY_FOR = {
    "bitsandbytes": ("int8", "nf4"),
    "llvmlite": ("int8-weight", "int4-weight"),
}
# The bits of an answer depend on them.
_SAME_EVERYWHERE = ("torch", "transformers")


def judge_python(interpreter: Interpreter, mend: Mend) -> Result:
    """Judge the version of Python."""
    if interpreter.version[:2] >= OLDEST_PYTHON:
        return Result(Status.OK, f"has Python {interpreter.words}")
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Result(
        Status.FAILED,
        f"has Python {interpreter.words} as {interpreter.path}",
        f"{oldest} or newer",
        mend.newer_python(),
    )


def judge_packages(versions: Mapping[str, str | None], subject_mend: Mend, pins: Pins) -> Result:
    """Judge the versions of the packages that a worker imports."""
    lacking: list[str] = []
    other: list[str] = []
    needed: list[str] = []
    is_needed = False
    for name, span in pins.ranges().items():
        version = versions.get(name)
        if version is not None and _is_in(version, span):
            continue
        if version is None:
            lacking.append(name)
        else:
            other.append(f"{name} {version}")
        needed.append(f"{name}{span}")
        purposes = _ONLY_FOR.get(name)
        wanted = subject_mend.subject.quantizations
        is_needed |= purposes is None or any(purpose in wanted for purpose in purposes)
    if not needed:
        return Result(Status.OK, f"has torch {versions.get('torch')}")
    seen = [f"has {_joined(other)}"] if other else []
    seen += [f"lacks {_joined(lacking)}"] if lacking else []
    return Result(
        Status.FAILED if is_needed else Status.WARNING,
        " and ".join(seen),
        ", ".join(needed),
        subject_mend.install(needed),
    )


def judge_code(version: str | None, mend: Mend) -> Result:
    """Judge whether both ends will run the same code."""
    spec = mend.subject.spec
    if spec.transport == "local" or spec.ships_code:
        return Result(Status.OK, f"gets the worker of stageline {__version__} from here")
    if version == __version__:
        return Result(Status.OK, f"has stageline {version}")
    found = "no stageline" if version is None else f"stageline {version}"
    return Result(
        Status.FAILED,
        f"has {found}, and code=installed in {mend.subject.name}",
        f"stageline {__version__}, as here",
        f"take code=installed out of {mend.subject.name}, or {mend.install(())}",
    )


def judge_device(
    gpus: Sequence[Mapping[str, Any]], mend: Mend, torch: str | None, cores: int
) -> Result:
    """Judge whether the devices that are asked for are there, and cores for so many stages."""
    names = [str(gpu["name"]) for gpu in gpus]
    has_cuda = bool(gpus) and not (torch or "").endswith("+cpu")
    for device in mend.subject.devices:
        if not device.startswith("cuda"):
            continue
        index = int(device.partition(":")[2] or 0)
        if index >= len(gpus):
            there = f"has {len(gpus)} NVIDIA cards" if gpus else "shows no NVIDIA card"
            step = f"give another device= in {mend.subject.name}, or install NVIDIA's driver there"
            return Result(Status.FAILED, f"{there} to nvidia-smi", f"{device} is asked for", step)
        if not has_cuda:
            return Result(
                Status.FAILED,
                f"has {names[index]}, but torch {torch} is a build for processors only",
                f"a CUDA build for {device}",
                f"{mend.install(['torch'])} from an index with CUDA builds",
            )
    if gpus and not has_cuda and "auto" in mend.subject.devices and torch is not None:
        return Result(
            Status.WARNING,
            f"has {names[0]}, but torch {torch} computes on the processor",
            "a CUDA build of torch to use the card",
            f"{mend.install(['torch'])} from an index with CUDA builds",
        )
    num_stages = mend.subject.num_stages
    on_cores = not names or mend.subject.devices == ("cpu",)
    if on_cores and is_crowded(num_stages, cores):
        return Result(
            Status.WARNING,
            f"has {counted(cores, 'core')} for {num_stages} stages, which then take turns",
            f"no more than {counted(cores, 'stage')}, as more make no answer faster",
            "give fewer slots= or lines for it, or a smaller --local",
        )
    return Result(Status.OK, f"has {names[0]}" if names else "computes on its processor")


def compare_versions(reports: Sequence[HostReport], mends: Sequence[Mend]) -> None:
    """Warn of hosts whose torch or transformers is another than on most of the hosts."""
    for name in _SAME_EVERYWHERE:
        found = [_public(report.facts.get("packages", {}).get(name)) for report in reports]
        counted = Counter(version for version in found if version)
        if len(counted) < 2:
            continue
        usual = counted.most_common(1)[0][0]
        for report, mend, version in zip(reports, mends, found, strict=True):
            if version in (None, usual) or report.result(Check.PACKAGES).status is not Status.OK:
                continue
            report.results[Check.PACKAGES] = Result(
                Status.WARNING,
                f"has {name} {version}, other hosts have {usual}: answers can differ in their bits",
                f"the same {name} on all hosts",
                mend.install([f"{name}=={usual}"]),
            )


def _is_in(version: str, span: SpecifierSet) -> bool:
    try:
        return span.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _public(version: str | None) -> str | None:
    """Return a version without the name of its build, as `+cpu`."""
    return version.partition("+")[0] if version else None


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
