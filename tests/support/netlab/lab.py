"""A lab: hosts, the switch between them, and the keys with which the first reaches the others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.cli import COMMAND, ROOT, environment
from tests.support.netlab.host import Host
from tests.support.netlab.link import Link
from tests.support.sshd import sshd_binary

# The first process of a host reaps its orphans (an ignored SIGCHLD does that) and ends with its
# stdin, which is ours: with it the kernel ends every other process of the host.
_INIT = "hostname node-{number} && trap '' CHLD && echo up && exec cat"
_UNSHARE = ("unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--")


def missing() -> str:
    """Return what this machine lacks for a lab, "" where it has all."""
    if os.geteuid() != 0:
        return "a lab of network namespaces needs root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "a lab of network namespaces needs /dev/net/tun"
    programs = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if sshd_binary() is None:
        programs.append("sshd")
    if programs:
        return f"a lab of network namespaces needs {', '.join(programs)}"
    # A container's root may not do what root may.
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True)
    return f"a lab of network namespaces: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass
class Lab:
    """Running hosts; the first has no sshd: the orchestrator runs there.

    Attributes:
        ssh_command: OpenSSH client with the lab's keys and known hosts.
        authorized: public key that the servers let in.
    """

    folder: Path
    hosts: list[Host]
    ssh_command: str
    authorized: Path

    @property
    def here(self) -> Host:
        """The host that the orchestrator runs on."""
        return self.hosts[0]

    @property
    def others(self) -> list[Host]:
        """The hosts that workers run on."""
        return self.hosts[1:]

    def write_hosts_file(self, lines: Iterable[str]) -> Path:
        """Write a hosts file whose lines begin with addresses of this lab."""
        path = self.folder / f"hosts-{uuid.uuid4().hex}.txt"
        common = f"python={sys.executable} env.PYTHONPATH={ROOT}"
        path.write_text("".join(f"{line} {common}\n" for line in lines))
        return path

    def program(self, name: str) -> str:
        """Return a stand-in for Python that runs `tests/support/NAME.py` in place of the worker."""
        path = self.folder / name
        script = ROOT / "tests" / "support" / f"{name}.py"
        path.write_text(
            '#!/bin/sh\nwhile [ "$1" != worker ]; do shift; done; shift\n'
            f'exec "{sys.executable}" "{script}" "$@"\n'
        )
        path.chmod(0o755)
        return str(path)

    def write_known_hosts(self) -> None:
        """Learn the key that each host has now."""
        keys = {host.address: (host.folder / "host_key.pub").read_text() for host in self.others}
        known = self.folder / "known_hosts"
        known.write_text("".join(f"{address} {key}" for address, key in keys.items()))

    def start_cli(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the orchestrator's command line on the first host."""
        return self.popen(*COMMAND, *words)

    def popen(self, *command: str, **streams: Any) -> subprocess.Popen[bytes]:
        """Start a program on the first host; its streams are unbuffered pipes, unless told so.

        The process is nsenter, which waits for the program; see `child_of`.
        """
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            self.here.words(*command),
            cwd=ROOT,
            env={**environment(), "HOME": str(self.here.folder)},
            bufsize=0,
            **{**pipes, **streams},
        )


def child_of(pid: int) -> int | None:
    """Return the pid of a process's child: of unshare and nsenter, the program that they run."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None  # ended
    return int(children[0]) if children else None


@contextlib.contextmanager
def running_lab(folder: Path, num_hosts: int) -> Iterator[Lab]:
    """Run `num_hosts` hosts, the first of which reaches the others over SSH."""
    with contextlib.ExitStack() as stack:
        inits = [stack.enter_context(_namespaces(number)) for number in range(num_hosts)]
        addresses = [f"10.77.0.{number + 1}" for number in range(num_hosts)]
        switch = stack.enter_context(_switch(inits, addresses))
        hosts = []
        for number, (init, address) in enumerate(zip(inits, addresses, strict=True)):
            home = folder / f"node-{number}"
            home.mkdir()
            hosts.append(Host(number, address, home, init, _Cable(switch, number)))
        lab = Lab(folder, hosts, _client(folder), folder / "user_key.pub")
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it
        for host in lab.others:
            host.new_host_key()
            host.start_sshd(lab.authorized)
        lab.write_known_hosts()
        yield lab


@dataclass(frozen=True)
class _Cable:
    """Changes one link of a switch."""

    switch: subprocess.Popen[bytes]
    number: int

    def __call__(self, link: Link) -> None:
        command = {"host": self.number, "link": asdict(link)}
        assert self.switch.stdin is not None and self.switch.stdout is not None
        self.switch.stdin.write(json.dumps(command).encode() + b"\n")
        assert self.switch.stdout.readline() == b"ok\n", "the switch has ended"


def _client(folder: Path) -> str:
    key = folder / "user_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    config = folder / "ssh_config"
    config.write_text(
        f"IdentityFile {key}\nIdentitiesOnly yes\nIdentityAgent none\n"
        "PreferredAuthentications publickey\n"
        f"UserKnownHostsFile {folder / 'known_hosts'}\nGlobalKnownHostsFile /dev/null\n"
    )
    return f"ssh -F {config}"


@contextlib.contextmanager
def _namespaces(number: int) -> Iterator[int]:
    """Make a host's namespaces; yield the pid of its init."""
    init = subprocess.Popen(
        [*_UNSHARE, "sh", "-c", _INIT.format(number=number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with _ended_with_its_stdin(init):
        assert init.stdout is not None and init.stdout.readline() == b"up\n", "no namespaces here"
        pid = child_of(init.pid)
        assert pid is not None
        yield pid


@contextlib.contextmanager
def _switch(inits: list[int], addresses: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    ends = [f"{pid}={address}" for pid, address in zip(inits, addresses, strict=True)]
    switch = subprocess.Popen(
        [sys.executable, "-m", "tests.support.netlab.switch", *ends],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    with _ended_with_its_stdin(switch):
        assert switch.stdout is not None and switch.stdout.readline() == b"up\n", "no switch"
        yield switch


@contextlib.contextmanager
def _ended_with_its_stdin(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        # Popen's own end of a `with` closes the pipes and waits.
        with process:
            pass
