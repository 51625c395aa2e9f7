"""A throw-away OpenSSH server on loopback with keys of its own; nothing of the user's is read."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 10.0


@dataclass(frozen=True, slots=True)
class Sshd:
    """A running server.

    Attributes:
        folder: keys, configurations and known_hosts files; `home` in it is everybody's home.
        pid: of the listening process.
        doors: further ports by name, each with rules of its own.
    """

    folder: Path
    port: int
    pid: int
    user: str
    doors: Mapping[str, int]

    def client(self, *, known: str = "known", key: str = "user_key") -> str:
        """Return an ssh command that knows this server by a file of `folder`."""
        config = self.folder / f"client_{known}_{key}"
        config.write_text(
            f"IdentityFile {self.folder / key}\n"
            "IdentitiesOnly yes\n"
            "IdentityAgent none\n"
            "PreferredAuthentications publickey\n"
            f"UserKnownHostsFile {self.folder / known}\n"
            "GlobalKnownHostsFile /dev/null\n"
        )
        return f"ssh -F {config}"


def sshd_binary() -> str | None:
    """Return the server's path, or None where it is not installed."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def running_sshd(
    folder: Path, *, rules: Sequence[str] = (), doors: Mapping[str, str] | None = None
) -> Iterator[Sshd]:
    """Run a server in `folder`, an absolute path: sshd starts itself again for each login.

    Args:
        folder: must be there and empty.
        rules: lines for its configuration.
        doors: further ports by name, with the lines that hold for logins through each.
    """
    binary = sshd_binary()
    assert binary is not None, "no sshd here"
    for name in ("host_key", "other_host_key", "user_key", "other_user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    (folder / "home").mkdir()
    port, ports = free_port(), {name: free_port() for name in doors or {}}
    _write_known_hosts(folder, [port, *ports.values()])
    listen = "".join(f"Port {number}\n" for number in (port, *ports.values()))
    (folder / "config").write_text(
        f"{listen}ListenAddress 127.0.0.1\nHostKey {folder / 'host_key'}\n"
        f"AuthorizedKeysFile {folder / 'user_key.pub'}\nPidFile none\nStrictModes no\n"
        "UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\n"
        # Of two MaxStartups sshd takes the last, of anything else the first.
        + "".join(f"{rule}\n" for rule in ("MaxStartups 100", *rules))
        + "".join(f"Match LocalPort {ports[name]}\n{own}\n" for name, own in (doors or {}).items())
        # After the doors: of two SetEnv sshd takes the first.
        + f"Match all\nSetEnv HOME={folder / 'home'}\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it as root
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [binary, "-D", "-e", "-f", folder / "config"], stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        _wait_for_port(server, port, folder)
        yield Sshd(folder, port, server.pid, getpass.getuser(), ports)
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def _write_known_hosts(folder: Path, ports: Sequence[int]) -> None:
    (folder / "unknown").write_text("")
    for name, key in (("known", "host_key"), ("changed", "other_host_key")):
        public = (folder / f"{key}.pub").read_text()
        lines = (f"[127.0.0.1]:{port} {public}" for port in ports)
        (folder / name).write_text("".join(lines))


def _wait_for_port(server: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert server.poll() is None, f"sshd ended: {(folder / 'log').read_text()}"
            assert time.monotonic() < deadline_s, f"sshd does not listen on {port}"
            time.sleep(0.02)  # a listening socket has no event that another process can wait for
