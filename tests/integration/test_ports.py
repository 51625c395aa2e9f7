"""Nothing of a run listens: no port is open that was not before, neither here nor over SSH."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.support.cli import start_cli
from tests.support.sshd import Sshd, running_sshd, sshd_binary

LIMIT_S = 60.0
ENDLESS = ("run", "--stub", "--prompt", "a b c", "--max-new-tokens", "1000000", "--no-bundle")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


def below(pid: int) -> list[psutil.Process]:
    """Return a process and all that it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def listeners(processes: Iterable[psutil.Process]) -> list[str]:
    """Return the ports that processes listen on, or could be sent datagrams on."""
    found = []
    for process in processes:
        for one in process.net_connections("inet"):
            if one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM:
                found.append(f"{' '.join(process.cmdline())}: {one.laddr}")
    return found


def seen_during(words: Sequence[str], also_below: int | None = None) -> tuple[int, list[str]]:
    """Run until there is text; return how many workers there are, and every listener."""
    run = start_cli(*ENDLESS, *words)
    with run:
        assert run.stdout is not None
        try:
            assert run.stdout.read(1), "the run ended before it began"
            processes = below(run.pid)
            if also_below is not None:
                processes += below(also_below)[1:]
            lines = [" ".join(process.cmdline()) for process in processes]
            # Of the words of an ssh client, and of its shell, the worker's are one.
            workers = [line for line in lines if " --nonce" in line and "ssh" not in line]
            return len(workers), listeners(processes)
        finally:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=LIMIT_S)


def test_a_listener_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert any(f"port={port}" in text for text in listeners([psutil.Process()]))


def test_a_local_run_opens_no_port() -> None:
    assert seen_during(["--local", "2"]) == (2, [])


@pytest.mark.sshd
@pytest.mark.skipif(
    sshd_binary() is None and not os.environ.get("CI"), reason="no OpenSSH server here"
)
def test_a_run_over_ssh_opens_no_port(sshd: Sshd, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(f"127.0.0.1:{sshd.port} slots=2\n")
    words = ["--hosts", str(hosts), "--ssh-command", sshd.client()]
    workers, found = seen_during(words, sshd.pid)
    assert (workers >= 2, found) == (True, [])
