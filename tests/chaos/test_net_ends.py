"""Whatever ends the orchestrator, and the link with it: no worker is left on any host."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.transport.ssh import SshTarget
from tests.support.cli import ROOT
from tests.support.netlab import Driven, Host, Lab, missing, running_lab

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "all here")

LEASE_S = 3.0
# A worker looks at its lease four times in its length, at least each second; then a loaded
# machine needs its time to end it.
SLACK_S = 4.0


@dataclass
class Cell:
    """One orchestrator in the middle of an answer, with two hosts of its own."""

    hosts: tuple[Host, Host]
    run: Driven
    ended_s: float = 0.0

    def cut(self) -> None:
        for host in self.hosts:
            host.cut()


def end_in_order(cell: Cell) -> None:
    assert cell.run.process.stdin is not None
    cell.run.process.stdin.close()


def interrupt(cell: Cell) -> None:
    cell.run.signal(signal.SIGINT)


def raise_in_it(cell: Cell) -> None:
    cell.run.ask("", 0, **{"raise": True})


def kill(cell: Cell) -> None:
    cell.run.signal(signal.SIGKILL)


def kill_and_cut(cell: Cell) -> None:
    cell.cut()
    kill(cell)


def stop(cell: Cell) -> None:
    cell.run.signal(signal.SIGSTOP)


def close_the_laptop(cell: Cell) -> None:
    cell.run.freeze()
    cell.cut()


# How long the workers may live on: 2 s are the grace of a worker that reads the end of its input.
ENDS = {
    end_in_order: 2.0,
    interrupt: 2.0,
    raise_in_it: 2.0,
    kill: 2.0,
    kill_and_cut: LEASE_S + 1,
    stop: LEASE_S + 1,
    close_the_laptop: LEASE_S + 1,
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab"), 1 + 2 * len(ENDS)) as lab:
        yield lab


def test_no_worker_outlives_its_orchestrator(lab: Lab) -> None:
    rest = iter(lab.others)
    with ExitStack() as stack:
        cells = {}
        for end in ENDS:
            hosts = (next(rest), next(rest))
            places = [{"host": host.name, "address": host.address} for host in hosts]
            run = stack.enter_context(
                Driven(lab, places, lease_s=LEASE_S, timeouts={"tick_s": 0.05})
            )
            cells[end] = Cell(hosts, run)
        for end, cell in cells.items():
            cell.run.until("serving")
            if end not in (end_in_order, raise_in_it):
                cell.run.ask("a b c", 100_000)
                cell.run.until("token", index=3)
        for end, cell in cells.items():
            assert sum(len(host.workers()) for host in cell.hosts) == 2, end.__name__
            cell.ended_s = time.monotonic()
            end(cell)
        left = {}
        for end, limit_s in ENDS.items():
            until_s = cells[end].ended_s + limit_s + SLACK_S
            left[end] = [guest for host in cells[end].hosts for guest in host.outstay(until_s)]
            print(f"{end.__name__}: gone after {time.monotonic() - cells[end].ended_s:.1f} s")
    assert left == {end: [] for end in ENDS}


def test_the_lease_holds_from_the_login_on(lab: Lab, tmp_path: Path) -> None:
    def spec(host: Host, **changes: Any) -> StageSpec:
        common = StageSpec(
            stage=0,
            num_stages=1,
            transport="ssh",
            python=sys.executable,
            ssh=SshTarget(host=host.address, ssh_command=lab.ssh_command),
            options=WorkerOptions(stub=True, lease_s=LEASE_S),
        )
        return replace(common, **changes)

    first, second, third = lab.others[:3]
    installed = {"code": "installed", "environment": {"PYTHONPATH": str(ROOT)}}
    odd = {
        **installed,
        "python": lab.program("odd_worker"),
        "options": WorkerOptions(stub=True, lease_s=LEASE_S, model_id="load-hangs"),
    }
    waiting = (
        # for its code, for its environment, for nothing that comes from here
        (first, b" need ", spec(first, environment={"XDG_CACHE_HOME": str(tmp_path)})),
        (second, b'"starting"', spec(second, secrets={"HF_TOKEN": "t"}, **installed)),
        (third, b'"importing"', spec(third, **odd)),
    )
    with ExitStack() as stack:
        runs = []
        for host, mark, each in waiting:
            host.connect()
            run = stack.enter_context(lab.popen(*each.launch("nonce").argv))
            stack.callback(run.kill)
            runs.append((host, mark, run))
        for host, mark, run in runs:
            assert run.stdout is not None
            while mark not in (line := run.stdout.readline()):
                assert line, f"{host.name} ended before {mark!r}"
        until_s = time.monotonic() + LEASE_S + 1 + SLACK_S
        assert [host.outstay(until_s) for host, _, _ in runs] == [[], [], []]
