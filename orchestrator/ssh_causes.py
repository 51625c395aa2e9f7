"""What OpenSSH's own messages mean, with the next step."""

from __future__ import annotations

import re
from collections.abc import Sequence

# The first pattern that is found names the cause; a changed key also says "verification failed".
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key .* has changed",
        (
            "has another SSH host key than known_hosts says; make sure it is the right machine, "
            "then remove the old key with 'ssh-keygen -R HOST'"
        ),
    ),
    (
        r"Host key verification failed|No .* host key is known",
        (
            "has an SSH host key that is not known here; run ssh to that host and port once and "
            "check the key, or pass --accept-new"
        ),
    ),
    (
        r"Permission denied|Too many authentication failures|No more authentication methods",
        (
            "refuses the SSH login; install a key there that needs no typing (ssh-copy-id), "
            "and check the user name"
        ),
    ),
    (
        r"Could not resolve hostname|Name or service not known|Temporary failure in name",
        "has a name that cannot be resolved; check the spelling in the hosts file and DNS",
    ),
    (r"Connection refused", "refuses SSH connections; check that sshd runs there, and the port"),
    (
        r"timed out",
        "does not answer to SSH in time; check that it is up and that no firewall drops the port",
    ),
    (
        r"No route to host|Network is unreachable",
        "cannot be reached over the network; check its address and the route to it",
    ),
    (
        r"kex_exchange_identification|Connection reset by|Connection closed by",
        (
            "closed the SSH connection during the login; sshd may limit logins (MaxStartups) or "
            "addresses, so start fewer stages at once or look at its log"
        ),
    ),
    (
        r"hostname contains invalid characters|Bad port|bad configuration option|terminating,",
        "cannot be given to ssh as it is written; check the hosts file's line and ~/.ssh/config",
    ),
)
_LOST = "lost its SSH connection; the host, the network or sshd's session ended"


def ssh_cause(stderr_lines: Sequence[str], said_hello: bool) -> str:
    """Return a verb phrase for ssh's exit code 255.

    Args:
        stderr_lines: what the client wrote.
        said_hello: whether the worker had spoken; then the link was lost, whatever ssh says.
    """
    shown = next((line.strip() for line in reversed(stderr_lines) if line.strip()), "")
    said = f" (ssh: {shown.removeprefix('ssh: ')[:200]})" if shown else ""
    if said_hello:
        return _LOST + said
    text = "\n".join(stderr_lines)
    for pattern, cause in _CAUSES:
        if re.search(pattern, text, re.IGNORECASE):
            return cause + said
    return "cannot be reached over SSH; run the same ssh command by hand to see why" + said
