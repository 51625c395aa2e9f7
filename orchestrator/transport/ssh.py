"""Workers on other hosts, over the user's own OpenSSH client.

The client as a subprocess brings ~/.ssh/config, ProxyJump, agents, FIDO keys and known_hosts with
it, and its cryptography runs in another process. One connection for each worker: a shared one
would let all stages of a host die together.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.transport.base import Launch
from orchestrator.transport.local import worker_command

# OpenSSH's own default set with GCM before the others: it is 1.6 to 1.9 times as fast where the
# processor has AES. The set is whole, for a server may know one of them alone.
CIPHERS = (
    "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,"
    "aes128-ctr,aes192-ctr,aes256-ctr"
)
# Of an option that is given twice ssh takes the first, so those of the user's own ssh command win;
# these win over ~/.ssh/config. Each was known to OpenSSH 7.6, of 2017.
_OPTIONS = (
    "BatchMode=yes",  # never ask on the terminal
    # Three lost answers end the connection: after 15 s, and a shorter interruption passes.
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "Compression=no",  # 14 to 26 times as slow
    f"Ciphers={CIPHERS}",
    # Neither the background class that OpenSSH gives what has no terminal, nor one that some
    # routers drop. ssh sets TCP_NODELAY in any case.
    "IPQoS=none",
    # A connection of its own, for the worker alone.
    "ControlMaster=no",
    "ControlPath=none",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "Tunnel=no",
    # What ~/.ssh/config may say for work by hand: it would take the place of the worker's command,
    # or write to its stdout.
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "LogLevel=ERROR",  # no banner
)
SSH_FAILED = 255
# After a SIGKILL only that host's kernel can say whether it was for want of memory: its log, where
# this user may read it, and its counter of such kills. Where the counter is what it was before the
# worker began, all of its log is about others.
FIRST_WORDS = 'k=$(grep "^oom_kill " /proc/vmstat 2>/dev/null)'
LAST_WORDS = (
    'c=$?; [ $c -ne 137 ] || { n=$(grep "^oom_kill " /proc/vmstat); [ "$n" = "$k" ] || '
    '{ dmesg | grep "illed process" | tail -n 1; echo "$n"; }; } 2>/dev/null | '
    'sed "s/^/kernel: /" >&2; exit $c'
)


@dataclass(frozen=True, slots=True)
class SshTarget:
    """Where to connect.

    Attributes:
        host: name, address or alias from ~/.ssh/config; never begins with `-`.
        ssh_command: the client and options of the user's own, split like a shell would.
        connect_timeout_s: for the TCP connection and the server's first line.
    """

    host: str
    user: str | None = None
    port: int | None = None
    accept_new_host_key: bool = False
    ssh_command: str = "ssh"
    connect_timeout_s: int = 10

    def __post_init__(self) -> None:
        for name, value in (("host", self.host), ("user", self.user)):
            # `-oProxyCommand=…` as a host would run a program here.
            if value is not None and (not value or value.startswith("-")):
                raise ValueError(f"{name} {value!r} is empty or begins with '-'; give a real name")

    @property
    def by_hand(self) -> str:
        """The command that a person would log in with."""
        port = f" -p {self.port}" if self.port is not None else ""
        return f"{self.ssh_command}{port} {self.login}"

    @property
    def login(self) -> str:
        """`user@host` or `host`."""
        return f"{self.user}@{self.host}" if self.user is not None else self.host

    @property
    def known_hosts_name(self) -> str:
        """What known_hosts calls the host."""
        return self.host if self.port in (None, 22) else f"[{self.host}]:{self.port}"

    def argv(self, remote_command: str) -> tuple[str, ...]:
        """Return the client's command line."""
        check = "accept-new" if self.accept_new_host_key else "yes"
        words = [*shlex.split(self.ssh_command), "-T"]
        for option in (
            *_OPTIONS,
            f"StrictHostKeyChecking={check}",
            f"ConnectTimeout={self.connect_timeout_s}",
        ):
            words += ("-o", option)
        if self.port is not None:
            words += ("-p", str(self.port))
        if self.user is not None:
            words += ("-l", self.user)
        return (*words, "--", self.host, remote_command)


def ssh_launch(
    label: str,
    target: SshTarget,
    python: str | None,
    environment: Mapping[str, str],
    arguments: Sequence[str],
) -> Launch:
    """Return the command of a worker on another host; the interpreter's arguments come last.

    What follows the worker keeps the shell alive behind it: without that a worker killed by a
    signal looks like a failure of ssh itself (255).
    """
    command = shlex.join(worker_command(python, environment, arguments))
    inner = f"{FIRST_WORDS}; {command}; {LAST_WORDS}"
    return Launch(label, target.argv(for_login_shell(inner)), "ssh")


def for_login_shell(line: str) -> str:
    """Return what has `sh` run a line, whatever the login shell is that reads it.

    Within quotes csh still reads `!`, and fish a backslash; outside of them a backslash takes the
    meaning of either away in every shell.
    """
    return "sh -c '" + re.sub(r"['\\!]", lambda found: f"'\\{found[0]}'", line) + "'"
