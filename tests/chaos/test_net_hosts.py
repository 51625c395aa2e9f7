"""Hosts that cannot be reached, or are not what they were, and many stages at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.cli import stub_answer
from tests.support.netlab import Lab, child_of, missing, running_lab

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "all here")

PROMPT = "a b c"
NUM_NEW = 6


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab"), 5) as lab:
        yield lab


@dataclass(frozen=True)
class Run:
    """What the command line gave."""

    code: int
    answer: dict[str, Any]

    @property
    def error(self) -> str:
        return str((self.answer.get("error") or {}).get("message", ""))


def start(
    lab: Lab, *lines: str, num_new: int = NUM_NEW, options: str = "--restarts 0"
) -> subprocess.Popen[bytes]:
    words = f"run --stub --raw --no-bundle --max-new-tokens {num_new} {options}"
    return lab.start_cli(
        *words.split(),
        f"--hosts={lab.write_hosts_file(lines)}",
        f"--prompt={PROMPT}",
        # A client that is told twice takes the first.
        f"--ssh-command={lab.ssh_command} -o ConnectTimeout=1",
    )


def run(lab: Lab, *lines: str) -> Run:
    process = start(lab, *lines, options="--restarts 0 --json")
    stdout, _ = process.communicate(timeout=60)
    return Run(process.returncode, json.loads(stdout))


def answers(lab: Lab, *lines: str, num_stages: int) -> bool:
    done = run(lab, *lines)
    expected = stub_answer(PROMPT, num_stages, NUM_NEW)
    return (done.code, done.answer["token_ids"]) == (0, expected)


def test_sixteen_stages_start_though_servers_take_few_logins_at_once(lab: Lab) -> None:
    for host in lab.others:
        host.connect(delay_ms=2)
        host.stop_sshd()
        # From the second login that is not through yet each third is dropped, from the fourth all.
        host.start_sshd(lab.authorized, "MaxStartups 2:30:4")
    lines = [f"{host.address} slots=4" for host in lab.others]
    assert answers(lab, *lines, num_stages=16)


def test_a_server_that_is_away_is_named_and_works_once_it_is_back(lab: Lab) -> None:
    first, second = lab.others[:2]
    second.stop_sshd()
    gone = run(lab, first.address, second.address)
    second.start_sshd(lab.authorized)
    assert (gone.code, gone.error.partition(";")[0]) == (
        5,
        f"stage 1 on {second.address} refuses SSH connections",
    )
    assert answers(lab, first.address, second.address, num_stages=2)


def test_a_machine_that_was_installed_anew_is_refused_until_its_key_is_known(lab: Lab) -> None:
    first, second = lab.others[:2]
    second.stop_sshd()
    second.new_host_key()
    second.start_sshd(lab.authorized)
    changed = run(lab, first.address, second.address)
    lab.write_known_hosts()
    assert (changed.code, changed.error.partition(";")[0]) == (
        5,
        f"stage 1 on {second.address} has another SSH host key than known_hosts says",
    )
    assert answers(lab, first.address, second.address, num_stages=2)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        # Nothing answers there; a router on the way says so; there is no way.
        ("10.77.0.77", "does not answer to SSH in time"),
        ("10.77.0.78", "cannot be reached over the network"),
        ("192.0.2.1", "cannot be reached over the network"),
    ],
)
def test_an_address_without_a_host_is_named(lab: Lab, address: str, words: str) -> None:
    lab.here.run("ip", "route", "replace", "unreachable", "10.77.0.78")
    lost = run(lab, lab.others[0].address, address)
    assert (lost.code, lost.error.partition(";")[0]) == (5, f"stage 1 on {address} {words}")


def test_a_spare_host_takes_over_in_the_middle_of_an_answer(lab: Lab) -> None:
    first, second, spare = lab.others[:3]
    for host in (first, second, spare):
        host.connect(delay_ms=5)
    lines = (first.address, second.address, f"spare {spare.address}")
    process = start(lab, *lines, num_new=120, options="--restarts 3")
    assert process.stdout is not None
    begun = process.stdout.read(1)
    second.stop_sshd()
    rest, stderr = process.communicate(timeout=60)
    second.start_sshd(lab.authorized)
    ids = [int(word) for word in (begun + rest).split()]
    notes = [line for line in stderr.decode().splitlines() if line.startswith("note: ")]
    print(*notes, sep="\n")
    assert (process.returncode, ids) == (0, stub_answer(PROMPT, 2, 120))
    assert f"moved from {second.address} to {spare.address}" in notes[-1]


def test_ctrl_c_ends_a_run_over_a_slow_link_at_once_and_in_order(lab: Lab) -> None:
    hosts = lab.others[:2]
    for host in hosts:
        host.connect(delay_ms=50)
    process = start(lab, *(host.address for host in hosts), num_new=100_000)
    assert process.stdout is not None
    assert process.stdout.read(1)
    pid = child_of(process.pid)
    assert pid is not None
    begun_s = time.monotonic()
    os.kill(pid, signal.SIGINT)
    process.communicate(timeout=30)
    took_s = time.monotonic() - begun_s
    print(f"Ctrl-C to the end: {took_s:.2f} s")
    left = [guest for host in hosts for guest in host.outstay(begun_s + 10)]
    assert (process.returncode, left, took_s < 3) == (130, [], True)
