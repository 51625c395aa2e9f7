"""Broken runs over the real OpenSSH client, against a real server where one is needed."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import psutil

from tests.support.faults.lab import ENDLESS, Lab, Run, remote
from tests.support.sshd import Sshd, free_port, running_sshd


def server(lab: Lab) -> Sshd:
    """Start a server of the lab's own."""
    folder = lab.folder / "sshd"
    folder.mkdir()
    return lab.stack.enter_context(running_sshd(folder))


def place_of(sshd: Sshd) -> str:
    """Return what a hosts line calls the server; the table calls it {sshd}."""
    return f"{sshd.user}@127.0.0.1:{sshd.port}"


def host_key_unknown(lab: Lab) -> Path:
    return _refused(lab, known="unknown")


def host_key_changed(lab: Lab) -> Path:
    return _refused(lab, known="changed")


def login_refused(lab: Lab) -> Path:
    return _refused(lab, key="other_user_key")


def _refused(lab: Lab, **client: str) -> Path:
    sshd = server(lab)
    return lab.run(["local", remote(place_of(sshd))], ssh=sshd.client(**client))


def connection_refused(lab: Lab) -> Path:
    return lab.run(["local", remote(f"127.0.0.1:{free_port()}")], ssh="ssh -F none")


def blackhole(lab: Lab) -> Path:
    """Something takes the connection and never speaks, as a firewall's proxy does."""
    mute = lab.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = mute.getsockname()[1]
    return lab.run(["local", remote(f"127.0.0.1:{port}")], ssh="ssh -F none -o ConnectTimeout=2")


def no_route(lab: Lab) -> Path:
    return lab.run(["local", remote("192.0.2.1")], ssh="ssh -F none", before=("unshare", "-n"))


def name_unknown(lab: Lab) -> Path:
    return lab.run(["local", remote("gpu1.invalid")], ssh="ssh -F none", before=("unshare", "-n"))


def session_lost(lab: Lab) -> Path:
    sshd = server(lab)

    def act(run: Run) -> None:
        run.pid(1)
        run.ops(9)
        for session in psutil.Process(sshd.pid).children():
            os.kill(session.pid, signal.SIGKILL)

    return lab.run(["local", remote(place_of(sshd))], *ENDLESS, act=act, ssh=sshd.client())


def over_real_ssh(lab: Lab) -> Path:
    sshd = server(lab)
    return lab.run(["local", remote(place_of(sshd), "slots=2")], ssh=sshd.client())
