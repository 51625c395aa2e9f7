"""Links and hosts that fail in the middle of an answer: it goes on, and is the same answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.history_chain import expected_tokens
from tests.support.netlab import Driven, Host, Lab, missing, running_lab

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "all here")

PROMPT = "the quick brown fox jumps over the lazy dog " * 4
CHUNK, NUM_NEW = 8, 60
LEASE_S = 2.0
# Longer than the silence that makes a stage count as lost, shorter than three attempts.
OUTAGE_S = 2.5
HASTY = {
    "silence_s": 1.2,
    "idle_silence_s": 1.5,
    "idle_ping_s": 0.3,
    "tick_s": 0.05,
    "hello_s": 10.0,
}
LINK = {"delay_ms": 3.0}

Steps = Iterator[None]
Cell = Callable[[Lab, "Answering"], Steps]


class Answering:
    """One orchestrator with two stages on hosts of its own, and what it is asked."""

    def __init__(self, lab: Lab, hosts: list[Host], spares: list[Host], models: list[str]) -> None:
        program = lab.program("history_worker")
        self.hosts = hosts
        self.spares = spares
        self.lost_s = 0.0
        self.run = Driven(
            lab,
            [
                {"host": host.name, "address": host.address, "program": program, "model_id": model}
                for host, model in zip(hosts, models, strict=True)
            ],
            spares=[{"host": host.name, "address": host.address} for host in spares],
            timeouts=HASTY,
            lease_s=LEASE_S,
            restarts=3,
        )

    def ask(self) -> None:
        self.run.until("serving")
        self.run.ask(PROMPT, NUM_NEW, chunk=CHUNK)

    def lose(self, host: Host) -> None:
        """Have its link lose everything for a while."""
        self.lost_s = time.monotonic()
        host.connect(**LINK, outage_s=OUTAGE_S)


def cut_in_decode(lab: Lab, own: Answering) -> Steps:
    own.ask()
    own.run.until("token", index=5)
    own.lose(own.hosts[1])
    yield


def cut_in_prefill(lab: Lab, own: Answering) -> Steps:
    own.ask()
    own.run.until("op", op="embed_and_forward")
    own.lose(own.hosts[0])
    yield


def cut_in_idle(lab: Lab, own: Answering) -> Steps:
    own.run.until("serving")
    own.lose(own.hosts[1])
    yield
    own.run.until("failure")
    own.run.ask(PROMPT, NUM_NEW, chunk=CHUNK)


def cut_in_load(lab: Lab, own: Answering) -> Steps:
    own.run.until("status", stage=1, phase="loading")
    own.lose(own.hosts[1])
    yield
    own.ask()


def cut_for_good(lab: Lab, own: Answering) -> Steps:
    own.ask()
    own.run.until("token", index=5)
    own.lost_s = time.monotonic()
    own.hosts[1].cut()
    yield
    moved = own.run.until("recovery", ok=True)
    assert (moved["host"], moved["new_host"]) == (own.hosts[1].name, own.spares[0].name)


def restart_of_sshd(lab: Lab, own: Answering) -> Steps:
    own.ask()
    own.run.until("token", index=5)
    own.lost_s = time.monotonic()
    own.hosts[0].stop_sshd()
    own.run.until("recovery", ok=False)
    own.hosts[0].start_sshd(lab.authorized)
    yield


def laptop_closed_and_opened(lab: Lab, own: Answering) -> Steps:
    own.ask()
    own.run.until("token", index=5)
    frozen = own.run.freeze()
    for host in own.hosts:
        host.cut()
    yield
    assert not any(host.outstay(time.monotonic() + LEASE_S + 8) for host in own.hosts)
    own.lost_s = time.monotonic()
    for host in own.hosts:
        host.connect(**LINK)
    for process in frozen:
        process.resume()


CELLS: tuple[Cell, ...] = (
    cut_in_decode,
    cut_in_prefill,
    cut_in_idle,
    cut_in_load,
    cut_for_good,
    restart_of_sshd,
    laptop_closed_and_opened,
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab"), 2 + 2 * len(CELLS)) as lab:
        for host in lab.others:
            host.connect(**LINK)
        yield lab


def test_an_answer_survives_what_the_network_does_to_it(lab: Lab, tmp_path: Path) -> None:
    *rest, spare = lab.others
    free = iter(rest)
    expected = expected_tokens(PROMPT, num_stages=2, prefill_chunk=CHUNK, max_new_tokens=NUM_NEW)
    seen: dict[str, Any] = {}
    with ExitStack() as stack:
        runs: dict[str, tuple[Answering, Steps]] = {}
        for cell in CELLS:
            hosts = [next(free), next(free)]
            spares = [spare] if cell is cut_for_good else []
            # Its first start is not ready before the link is cut.
            last = f"hold:{tmp_path / 'held'}" if cell is cut_in_load else "history"
            own = Answering(lab, hosts, spares, ["history", last])
            stack.enter_context(own.run)
            runs[cell.__name__] = own, cell(lab, own)
        for _, steps in runs.values():
            next(steps)
        for _, steps in runs.values():
            next(steps, None)
        for name, (own, _) in runs.items():
            answer = own.run.until("answer")
            took_s = own.run.all("recovery")[-1]["at_s"] - own.lost_s
            print(f"{name}: serves again {took_s:.1f} s after the fault")
            for notice in own.run.all("notice"):
                print(f"    {notice['text']}")
            lost = {record["stage"] for record in own.run.all("failure")}
            back = {record["stage"] for record in own.run.all("recovery") if record["ok"]}
            seen[name] = answer["token_ids"] == expected, lost <= back, own.run.end()
    assert seen == {cell.__name__: (True, True, 0) for cell in CELLS}
