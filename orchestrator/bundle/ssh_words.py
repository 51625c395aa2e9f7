"""What OpenSSH's own messages say is wrong: the id of the cause and the next step."""

from __future__ import annotations

import re
from typing import NamedTuple

from orchestrator.bundle.cause import Cause


class Meaning(NamedTuple):
    """A cause, and what to do about it; {host} stands for the host's label."""

    cause: Cause
    advice: str


# The first pattern that is found names the cause; a changed key also says "verification failed".
_MEANINGS: tuple[tuple[str, Meaning], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key .* has changed",
        Meaning(
            Cause.HOST_KEY_CHANGED,
            "make sure that it is the right machine, then remove the old key with `ssh-keygen -R` "
            "as ssh shows it in the stage's stderr, and log in once by hand",
        ),
    ),
    (
        r"Host key verification failed|No .* host key is known",
        Meaning(
            Cause.HOST_KEY_UNKNOWN,
            "run `ssh {host}` once and check the key, or pass --accept-new",
        ),
    ),
    (
        r"Permission denied|Too many authentication failures|No more authentication methods",
        Meaning(
            Cause.LOGIN_REFUSED,
            "run `ssh-copy-id {host}`, and check the user name; the login must need no typing",
        ),
    ),
    (
        r"stdio forwarding failed|open failed: ",
        Meaning(
            Cause.JUMP_HOST_FAILED,
            "check ProxyJump of {host} in ~/.ssh/config, and that {host} is up",
        ),
    ),
    (
        r"Could not resolve hostname|Name or service not known|Temporary failure in name",
        Meaning(Cause.NAME_UNRESOLVED, "check the spelling in the hosts file, and DNS here"),
    ),
    (
        r"Connection refused",
        Meaning(Cause.CONNECTION_REFUSED, "check that sshd runs on {host}, and the port"),
    ),
    (
        r"timed out",
        Meaning(Cause.HOST_SILENT, "check that {host} is up and that no firewall drops the port"),
    ),
    (
        r"No route to host|Network is unreachable",
        Meaning(Cause.NO_ROUTE, "check the address of {host} and the route to it"),
    ),
    (
        (
            r"hostname contains invalid characters|Bad port|bad configuration option|terminating,|"
            r"Bad owner or permissions|Unable to negotiate|no matching "
        ),
        Meaning(Cause.SSH_MISCONFIGURED, "check the line of {host} and ~/.ssh/config"),
    ),
    (
        (
            r"kex_exchange_identification|ssh_exchange_identification|Exceeded MaxStartups|"
            r"Connection reset by|Connection closed by|Not allowed at this time"
        ),
        Meaning(
            Cause.LOGIN_DROPPED,
            "sshd there may limit logins (MaxStartups) or addresses: look at its log, or start "
            "fewer stages at once",
        ),
    ),
)
_UNKNOWN = Meaning(Cause.SSH_FAILED, "run `ssh {host}` by hand to see why")


def ssh_meaning(text: str) -> Meaning:
    """Return what the client's messages mean."""
    return next(
        (meaning for pattern, meaning in _MEANINGS if re.search(pattern, text, re.IGNORECASE)),
        _UNKNOWN,
    )
