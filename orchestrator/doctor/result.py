"""What the doctor found: one result for each check of each host."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.visit.check import Check


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_REACHED = "not_reached"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True)
class Result:
    """One check of one host.

    Attributes:
        seen: what was found, as it stands behind the host's name.
        needed: what should have been found; "" where that is plain.
        mend: the command that mends it, else the next step in words.
    """

    status: Status
    seen: str = ""
    needed: str = ""
    mend: str = ""

    @property
    def is_complaint(self) -> bool:
        """Whether a person should do something about it."""
        return self.status in (Status.WARNING, Status.FAILED)


@dataclass(slots=True)
class HostReport:
    """All that was found on one host.

    Attributes:
        name: its line in the hosts file.
        label: the host as the user wrote it.
        results: by check; what is not in it was not reached.
        facts: what the host told, as decoded JSON, by name.
    """

    name: str
    label: str
    is_spare: bool = False
    results: dict[Check, Result] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def result(self, check: Check) -> Result:
        """Return the result of a check."""
        return self.results.get(check, Result(Status.NOT_REACHED))

    def complaints(self) -> list[tuple[Check, Result]]:
        """Return what is to be mended, in the order of the checks."""
        return [(check, self.results[check]) for check in Check if self._complains(check)]

    def failed(self) -> list[Check]:
        """Return the checks that failed."""
        return [check for check in Check if self.result(check).status is Status.FAILED]

    def _complains(self, check: Check) -> bool:
        return check in self.results and self.results[check].is_complaint
