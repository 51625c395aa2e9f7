"""One host of a lab: its processes, its OpenSSH server, its link."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.netlab.link import Link
from tests.support.sshd import sshd_binary

START_S = 20.0
_LISTENS = "0A"


@dataclass
class Host:
    """A set of namespaces around one init process.

    Attributes:
        number: index in its lab.
        address: IPv4 address in the lab.
        folder: its home and the files of its sshd.
        init: pid of its first process, as seen from here; all others end with it.
        set_link: changes what its link does.
    """

    number: int
    address: str
    folder: Path
    init: int
    set_link: Callable[[Link], None]
    link: Link = field(default_factory=Link)

    @property
    def name(self) -> str:
        """Its host name."""
        return f"node-{self.number}"

    def connect(self, **changes: Any) -> None:
        """Set what its link does; what is not named is as a good link has it."""
        self.link = Link(**changes)
        self.set_link(self.link)

    def cut(self) -> None:
        """Lose every packet from now on, without a word to either end."""
        self.connect(up=False)

    def words(self, *command: str | Path) -> list[str]:
        """Return the command line that runs a command on this host."""
        enter = f"nsenter --target {self.init} --net --uts --pid --mount --".split()
        return [*enter, *map(str, command)]

    def run(self, *command: str | Path) -> str:
        """Run a command there to its end; return what it wrote to stdout."""
        done = subprocess.run(self.words(*command), capture_output=True, text=True, timeout=START_S)
        assert done.returncode == 0, f"{self.name}: {command}: {done.stderr}"
        return done.stdout

    def processes(self) -> list[tuple[str, psutil.Process]]:
        """Return what lives there, its init aside, each with its name."""
        there = _pid_namespace(self.init)
        pids = (pid for pid in psutil.pids() if pid != self.init and _pid_namespace(pid) == there)
        return [(name, process) for pid in pids for name, process in _living(pid)]

    def guests(self) -> list[psutil.Process]:
        """Return what somebody started there over SSH and has not ended, at any generation."""
        return [process for name, process in self.processes() if not name.startswith("sshd")]

    def workers(self) -> list[psutil.Process]:
        """Return the workers that live there; an orchestrator gives each a nonce."""
        return [process for process in self.guests() if _is_worker(process)]

    def outstay(self, until_s: float) -> list[psutil.Process]:
        """Wait for the end of its guests; return those that are there at `until_s` (monotonic)."""
        while (guests := self.guests()) and time.monotonic() < until_s:
            time.sleep(0.05)  # they are no children of ours, so there is nothing to wait for
        return guests

    def new_host_key(self) -> str:
        """Make a host key, as an installation does; return its public part."""
        path = self.folder / "host_key"
        path.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        return path.with_suffix(".pub").read_text()

    def start_sshd(self, authorized: Path, *options: str) -> None:
        """Start the OpenSSH server on port 22 and wait until it listens.

        Args:
            authorized: public key of who may log in.
            options: further lines of its configuration; sshd keeps the first of a kind.
        """
        binary = sshd_binary()
        assert binary is not None
        config = self.folder / "sshd_config"
        lines = (
            *options,
            f"ListenAddress {self.address}",
            f"HostKey {self.folder / 'host_key'}",
            f"AuthorizedKeysFile {authorized}",
            f"PidFile {self.folder / 'sshd.pid'}",
            # Each host has a home of its own, so that none finds what another one keeps.
            f"SetEnv HOME={self.folder}",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
        )
        config.write_text("\n".join(lines) + "\n")
        self.run(binary, "-E", self.folder / "sshd.log", "-f", config)
        deadline_s = time.monotonic() + START_S
        while not self._listens(22):
            assert time.monotonic() < deadline_s, (self.folder / "sshd.log").read_text()
            time.sleep(0.01)  # a listening socket has no event that another process can wait for

    def stop_sshd(self) -> None:
        """End the server and every session of it, as a shutdown does."""
        for name, process in self.processes():
            if name.startswith("sshd"):
                process.kill()
        (self.folder / "sshd.pid").unlink(missing_ok=True)

    def _listens(self, port: int) -> bool:
        table = Path(f"/proc/{self.init}/net/tcp").read_text().splitlines()[1:]
        rows = (line.split() for line in table)
        return any(row[1].endswith(f":{port:04X}") and row[3] == _LISTENS for row in rows)


def _pid_namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None  # ended meanwhile


def _living(pid: int) -> list[tuple[str, psutil.Process]]:
    """Return a process with its name; nothing for one that has ended, reaped or not."""
    try:
        process = psutil.Process(pid)
        alive = process.status() != psutil.STATUS_ZOMBIE
        return [(process.name(), process)] if alive else []
    except psutil.Error:
        return []


def _is_worker(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False  # ended meanwhile
    return any(word.startswith("--nonce=") for word in words)
