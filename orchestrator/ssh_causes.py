"""What OpenSSH's own messages mean, with the next step."""

from __future__ import annotations

import getopt
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.transport.ssh import SshTarget


@dataclass(frozen=True, slots=True)
class SshCause:
    """Why a login failed or a connection was lost.

    Attributes:
        text: a verb phrase that completes "stage 1 on HOST …", with the next step.
        may_pass: whether another try may go better.
    """

    text: str
    may_pass: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """A message of ssh.

    Attributes:
        pattern: found in the client's stderr.
        text: `{by_hand}` is the command to log in with, `{forget}` the one that forgets the host's
            key, `{allow}` what installs a key of this user's there.
    """

    pattern: str
    text: str
    may_pass: bool = False


_DROPPED = (
    r"kex_exchange_identification|ssh_exchange_identification|banner exchange: Connection"
    r"|Connection (reset|closed) by|Not allowed at this time|Exceeded MaxStartups"
)
# The client itself, before it tries anything.
_REFUSED_HERE = (
    r"hostname contains invalid characters|Bad port|bad configuration option|terminating,"
    r"|Bad owner or permissions|Bad SSH2 cipher|Can't open user config file"
)
# Options that ssh-copy-id takes as ssh does.
_COPY_ID_OPTIONS = "F:i:o:p:"
# The first that is found names the cause; a changed key also says "verification failed", and each
# failure at a jump host also ends in "Connection closed by".
_KNOWN: tuple[_Known, ...] = (
    _Known(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key .* has changed",
        "has another SSH host key than known_hosts says; make sure it is the right machine, then "
        'remove the old key with "{forget}"',
    ),
    _Known(
        r"Host key verification failed|No .* host key is known",
        "has an SSH host key that is not known here; run '{by_hand}' once and check the key, or "
        "pass --accept-new (a jump host's key must be known in any case)",
    ),
    _Known(
        _REFUSED_HERE,
        "cannot be given to ssh as it is written; check the hosts file's line, --ssh-command and "
        "~/.ssh/config",
    ),
    _Known(
        r"Permission denied|Too many authentication failures|No more authentication methods",
        "refuses the SSH login; install a key there that needs no typing {allow}, load one that "
        "has a passphrase with 'ssh-add', and check the user name and that the account is not "
        "locked",
    ),
    _Known(
        r"(stdio forwarding failed|open failed: )",
        "cannot be reached from its jump host; check ProxyJump for it in ~/.ssh/config, and that "
        "it is up",
        may_pass=True,
    ),
    _Known(
        r"Could not resolve hostname|Name or service not known|Temporary failure in name",
        "has a name that cannot be resolved; check the spelling in the hosts file and DNS",
    ),
    _Known(
        r"Connection refused",
        "refuses SSH connections; check that sshd runs there, and the port",
        may_pass=True,  # as while a host starts
    ),
    _Known(
        r"timed out",
        "does not answer to SSH in time; check that it is up and that no firewall drops the port, "
        "or raise --start-timeout-s",
        may_pass=True,
    ),
    _Known(
        r"No route to host|Network is unreachable",
        "cannot be reached over the network; check its address and the route to it",
        may_pass=True,
    ),
    _Known(
        r"Unable to negotiate|no matching (cipher|key exchange method|host key type|MAC) found",
        "and the ssh client here have no algorithm in common; add the one that the server offers "
        'with --ssh-command, for example "ssh -o Ciphers=aes256-cbc"',
    ),
    _Known(
        _DROPPED,
        "closed the SSH connection during the login; sshd may limit logins (MaxStartups) or "
        "addresses, so look at its log",
        may_pass=True,
    ),
)
_LOST = "lost its SSH connection; the host, the network or sshd's session ended"
_NOBODY = SshTarget(host="HOST")


def ssh_cause(
    stderr_lines: Sequence[str], said_hello: bool, target: SshTarget | None = None
) -> SshCause:
    """Return what ssh's exit code 255 means.

    Args:
        stderr_lines: what the client wrote.
        said_hello: whether the worker had spoken; then the link was lost, whatever ssh says.
        target: where it was to connect, for the command that mends it.
    """
    lines = [line.strip() for line in stderr_lines if line.strip()]
    # What a ProxyCommand says comes before what ssh makes of it.
    telling = [line for line in lines if not re.search(_DROPPED, line, re.IGNORECASE)]
    shown = (telling or lines or [""])[-1]
    said = f" (ssh: {shown.removeprefix('ssh: ')[:200]})" if shown else ""
    if said_hello:
        return SshCause(_LOST + said, may_pass=True)
    target = target or _NOBODY
    known = _known(stderr_lines)
    if known is None or (known.pattern == _DROPPED and not is_dropped(stderr_lines)):
        text = f"cannot be reached over SSH; run '{target.by_hand}' to see why"
        return SshCause(text + said, may_pass=True)
    words = known.text.format(
        by_hand=target.by_hand, forget=_forget(stderr_lines, target), allow=_allow(target)
    )
    return SshCause(words + said, known.may_pass)


def is_dropped(stderr_lines: Sequence[str]) -> bool:
    """Tell whether the server ended the login for the number of logins, and not for this one.

    It says nothing else then: other words are a ProxyCommand's or a jump host's, which ended.
    """
    written = [line for line in stderr_lines if line.strip()]
    return bool(written) and all(re.search(_DROPPED, line, re.IGNORECASE) for line in written)


def is_refused_here(stderr_lines: Sequence[str]) -> bool:
    """Tell whether the client here failed before it tried anything."""
    known = _known(stderr_lines)
    return known is not None and known.pattern == _REFUSED_HERE


def _known(stderr_lines: Sequence[str]) -> _Known | None:
    text = "\n".join(stderr_lines)
    return next((one for one in _KNOWN if re.search(one.pattern, text, re.IGNORECASE)), None)


def _forget(stderr_lines: Sequence[str], target: SshTarget) -> str:
    """Return the command that removes a changed key: ssh names the host and the file it used."""
    text = "\n".join(stderr_lines)
    name = re.search(r"Host key for (\S+) has changed", text)
    file = re.search(r"Offending \S+ key in (.+):\d+", text)
    words = ["ssh-keygen", *(("-f", file[1].strip()) if file else ())]
    # Quoted in any case: the name may be `[host]:port`, which a shell takes for a pattern.
    return f"{shlex.join(words)} -R '{name[1] if name else target.known_hosts_name}'"


def _allow(target: SshTarget) -> str:
    """Return how a key of this user's comes to the host, as an adverb."""
    program, *words = shlex.split(target.ssh_command)
    try:
        options, rest = getopt.getopt(words, _COPY_ID_OPTIONS)
    except getopt.GetoptError:
        options, rest = [], words
    if program.rpartition("/")[2] != "ssh" or rest:
        return "(a line of ~/.ssh/authorized_keys there)"
    if target.port is not None and "-p" not in dict(options):
        options.append(("-p", str(target.port)))
    command = shlex.join(
        ["ssh-copy-id", *(word for pair in options for word in pair), target.login]
    )
    return f'with "{command}"' if "'" in command else f"with '{command}'"
