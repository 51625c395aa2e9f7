"""The lab that the tests of the network stand on: links do what they say, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.cli import ROOT
from tests.support.netlab import Host, missing, running_lab

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "all here")

# Prints how long a TCP connection takes to be made, in milliseconds: one round trip.
CONNECT = """
import socket, sys, time
begun_s = time.perf_counter()
socket.create_connection((sys.argv[1], 22), float(sys.argv[2])).close()
print((time.perf_counter() - begun_s) * 1000)
"""
OWNER = """
import sys
from pathlib import Path
from tests.support.netlab import running_lab
with running_lab(Path(sys.argv[1]), 2) as lab:
    print(*(host.init for host in lab.hosts), flush=True)
    sys.stdin.read()
"""


def connect_ms(here: Host, there: Host, timeout_s: float = 5.0) -> float:
    return float(here.run(sys.executable, "-c", CONNECT, there.address, str(timeout_s)))


def test_links_take_their_time_and_two_labs_do_not_meet(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with running_lab(folders[0], 2) as slow, running_lab(folders[1], 2) as fast:
        slow.here.connect(delay_ms=60)
        slow.others[0].connect(delay_ms=40)
        slow_ms, fast_ms = (min(connect_ms(*lab.hosts) for _ in range(3)) for lab in (slow, fast))
        slow.others[0].cut()
        with pytest.raises(AssertionError, match="timed out"):
            connect_ms(*slow.hosts, timeout_s=0.3)
        slow.others[0].connect()
        healed_ms = connect_ms(*slow.hosts)
    assert (200 <= slow_ms < 300, fast_ms < 100, healed_ms >= 120) == (True, True, True)


def test_a_link_loses_and_limits_as_it_is_told(tmp_path: Path) -> None:
    with running_lab(tmp_path, 2) as lab:
        there = lab.others[0]
        there.connect(rate_mbit=4)
        begun_s = time.monotonic()
        command = [*lab.ssh_command.split(), there.address, "head -c 500000 /dev/zero"]
        done = subprocess.run(lab.here.words(*command), capture_output=True, check=True)
        took_s = time.monotonic() - begun_s
    # 500 kB at 4 Mbit/s are a second, and what is lost at the full queue is sent again.
    assert (len(done.stdout), took_s >= 1.0) == (500_000, True)


def test_nothing_is_left_of_a_lab_whose_owner_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        inits = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        below = [*psutil.Process(owner.pid).children(recursive=True), *inits]
        owner.kill()
        _, alive = psutil.wait_procs(below, 10)
    assert (len(inits), alive) == (2, [])
