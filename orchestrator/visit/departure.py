"""Why a program of ours did not get to speak, or stopped: which check failed, in words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.specs import StageSpec
from orchestrator.ssh_causes import is_dropped, is_refused_here, ssh_cause
from orchestrator.transport.base import ExitStatus
from orchestrator.transport.ssh import SSH_FAILED
from orchestrator.visit.check import Check

# Which part of the way ssh speaks of. The first that is found counts: a changed key also says
# "verification failed", and a host that cannot be reached asks for no key.
_PARTS: tuple[tuple[str, Check], ...] = (
    (r"could not resolve|name or service not known|temporary failure in name", Check.NAME),
    (r"host key|host identification", Check.KEY),
    (
        r"permission denied|authentication|passphrase|account|expired|not allowed|no such identity",
        Check.LOGIN,
    ),
)


class VisitFailed(Exception):
    """The host could not be visited.

    Attributes:
        check: what failed.
        cause: a verb phrase that completes "HOST …".
        lost: whether the program had spoken before.
        here: whether the client here failed, before it tried anything.
        dropped: whether the server ended the login for the number of logins, and not for this one.
    """

    def __init__(
        self,
        check: Check,
        cause: str,
        *,
        here: bool = False,
        lost: bool = False,
        dropped: bool = False,
    ) -> None:
        super().__init__(cause)
        self.here = here
        self.dropped = dropped
        self.check = check
        self.cause = cause
        self.lost = lost


@dataclass(frozen=True, slots=True)
class Departure:
    """What is known of a process that ended though nobody asked it to.

    Attributes:
        has_shell: whether a shell of the host had spoken.
        stderr_lines: last lines of stderr, newest last.
        noise: last lines of stdout that were not ours.
    """

    spec: StageSpec
    status: ExitStatus
    has_shell: bool
    stderr_lines: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """The last words, in parentheses."""
        for lines in (self.stderr_lines, self.noise):
            for line in reversed(lines):
                if line.strip():
                    return f" ({line.strip()[:300]})"
        return ""


def why_departed(departure: Departure) -> VisitFailed:
    """Return what failed."""
    code = departure.status.code
    if departure.spec.transport == "ssh" and (code == SSH_FAILED or code is None):
        cause = ssh_cause(departure.stderr_lines, departure.has_shell, departure.spec.ssh)
        dropped = not departure.has_shell and is_dropped(departure.stderr_lines)
        if not departure.has_shell and is_refused_here(departure.stderr_lines):
            return VisitFailed(Check.LOGIN, cause.text, here=True)
        return VisitFailed(_part(departure), cause.text, lost=departure.has_shell, dropped=dropped)
    if not departure.has_shell:
        return _no_shell(departure)
    if code in (126, 127):
        return VisitFailed(Check.PYTHON, f"has no Python that runs{departure.said}")
    return VisitFailed(
        Check.PYTHON,
        f"has a Python that ended with {departure.status} before it answered{departure.said}",
        lost=True,
    )


def _part(departure: Departure) -> Check:
    if departure.has_shell:
        return Check.LINK
    text = "\n".join(departure.stderr_lines).lower()
    found = (check for pattern, check in _PARTS if re.search(pattern, text))
    return next(found, Check.PORT)


def _no_shell(departure: Departure) -> VisitFailed:
    if departure.spec.transport == "ssh":
        return VisitFailed(
            Check.LOGIN,
            f"lets ssh in, but its login shell ended with {departure.status} before it ran a "
            f"command{departure.said}; look at its start-up files and at the account's shell",
        )
    return VisitFailed(
        Check.LOGIN,
        f"was not reached: its command ended with {departure.status} before anything ran "
        f"there{departure.said}; run the command by hand",
    )
