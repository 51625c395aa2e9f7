"""Compare what the diagnosis says of a bundle with the truth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.bundle.diagnose import diagnose
from orchestrator.bundle.findings import Finding, Rank
from orchestrator.bundle.reader import read_bundle
from tests.support.faults.truth import NOTES, TRUTH, Truth

# Ports are new each time.
_PLACES = {
    "{sshd}": r"[\w.-]+@127\.0\.0\.1:\d+",
    "{closed}": r"127\.0\.0\.1:\d+",
    "{mute}": r"127\.0\.0\.1:\d+",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One run, what is true of it and what was said.

    Attributes:
        truth: None where nothing is wrong.
        said: the first finding; None where there is none.
    """

    name: str
    truth: Truth | None
    said: Finding | None

    @property
    def misses(self) -> tuple[str, ...]:
        """What the diagnosis has wrong; empty where all is right."""
        truth, said = self.truth, self.said
        if truth is None:
            return () if said is None else (f"said {said.cause} of a healthy run",)
        if said is None:
            return ("said nothing",)
        place = _PLACES.get(truth.host) or re.escape(truth.host)
        right = {
            "stage": said.stage == truth.stage,
            "host": re.fullmatch(place, said.host) is not None,
            "phase": _is_phase(truth.phase, said.phase),
            "cause": said.cause == truth.cause,
            "rank": (said.rank == Rank.NOTE) == (self.name in NOTES),
        }
        return tuple(what for what, is_right in right.items() if not is_right)


def judge(name: str, bundle: Path) -> Verdict:
    """Diagnose a bundle of that kind."""
    findings = diagnose(read_bundle(bundle))
    return Verdict(name, TRUTH.get(name), findings[0] if findings else None)


def _is_phase(truth: str, said: str) -> bool:
    """`serving` is any op, or the moment between two; a phase that nobody can know is ""."""
    if truth == "serving":
        return said == "idle" or said.startswith("serving ")
    return truth in ("", said)
