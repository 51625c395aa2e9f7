"""Stages over slow, lossy and cut links: the right answer, or the right failure in time."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.cli import stub_answer
from tests.support.netlab import Driven, Host, Lab, missing, running_lab

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "all here")

PROMPT = " ".join(f"w{i}" for i in range(600))
HASTY = {"silence_s": 2.0, "idle_silence_s": 3.0, "idle_ping_s": 0.3, "tick_s": 0.05}
# A loaded machine notices later than a quiet one.
SLACK_S = 3.0
# What the last stage may be doing at the moment that is meant.
PHASES = {
    "decode": ("serving forward_and_sample", "serving detokenize"),
    "prefill": ("serving forward_and_sample",),
    "load": ("loading",),
    "idle": ("idle",),
}


@pytest.fixture(scope="module")
def whole_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(tmp_path_factory.mktemp("lab"), 13) as lab:
        yield lab


@pytest.fixture
def lab(whole_lab: Lab) -> Lab:
    for host in whole_lab.hosts:
        host.connect()
    return whole_lab


def start_run(lab: Lab, hosts: list[Host], num_new: int) -> subprocess.Popen[bytes]:
    """Start the command line with one stub stage on each host."""
    hosts_file = lab.write_hosts_file(host.address for host in hosts)
    words = f"run --stub --raw --json --no-bundle --max-new-tokens {num_new} --restarts 0".split()
    return lab.start_cli(
        *words, "--hosts", str(hosts_file), "--ssh-command", lab.ssh_command, "--prompt", PROMPT
    )


def places(*hosts: Host, **more: Any) -> list[dict[str, Any]]:
    return [{"host": host.name, "address": host.address, **more} for host in hosts]


LINKS: list[tuple[int, int, dict[str, float]]] = [
    # stages, new tokens, link of each host (the round trip is twice its delay)
    (4, 24, {"delay_ms": 2.5}),
    (2, 12, {"delay_ms": 25, "jitter_ms": 5}),
    (2, 3, {"delay_ms": 150}),
    (2, 12, {"rate_mbit": 1, "delay_ms": 5}),
    (2, 24, {"loss": 0.01, "delay_ms": 10}),
]


def test_a_run_over_any_link_gives_the_same_answer(lab: Lab) -> None:
    rest = iter(lab.others)
    runs = []
    for num_stages, num_new, link in LINKS:
        hosts = [next(rest) for _ in range(num_stages)]
        for host in hosts:
            host.connect(**link)
        runs.append(start_run(lab, hosts, num_new))
    results = []
    for run in runs:
        stdout, stderr = run.communicate(timeout=100)
        shown = [f": {phase}" in stderr.decode() for phase in ("connecting", "ready")]
        answer = json.loads(stdout)
        results.append((run.returncode, answer["token_ids"], answer.get("error"), shown))
    assert results == [
        (0, stub_answer(PROMPT, num_stages, num_new), None, [True, True])
        for num_stages, num_new, _ in LINKS
    ]


class TestHalfOpen:
    """The link of one host loses everything, and neither end is told."""

    def test_a_cut_link_is_noticed_in_time_in_every_phase(self, lab: Lab) -> None:
        rest = iter(lab.others)
        cells = {name: (next(rest), next(rest)) for name in ("decode", "prefill", "load", "idle")}
        for host in lab.others:
            host.connect(delay_ms=5)
        odd = {"program": lab.program("odd_worker"), "model_id": "load-hangs"}
        with ExitStack() as stack:
            runs = {
                name: stack.enter_context(
                    Driven(lab, places(*hosts, **(odd if name == "load" else {})), timeouts=HASTY)
                )
                for name, hosts in cells.items()
            }
            runs["load"].until("status", stage=1, phase="loading")
            for name in ("decode", "prefill", "idle"):
                runs[name].until("serving")
            runs["decode"].ask("a b c", 10_000)
            runs["decode"].until("token", index=5)
            runs["prefill"].ask(PROMPT, 1, chunk=2)
            runs["prefill"].until("op", op="forward_and_sample")
            cut_s = {}
            for name, (_, host) in cells.items():
                cut_s[name] = time.monotonic()
                host.cut()
            seen = {}
            for name, run in runs.items():
                failure = run.until("failure")
                took_s = failure["at_s"] - cut_s[name]
                limit_s = HASTY["idle_silence_s" if name in ("load", "idle") else "silence_s"]
                print(f"{name}: {took_s:.2f} s, limit {limit_s} s, {failure['sentence']}")
                seen[name] = (
                    failure["kind"],
                    failure["stage"],
                    failure["host"],
                    failure["phase"] in PHASES[name],
                    limit_s - HASTY["idle_ping_s"] - 0.2 < took_s < limit_s + SLACK_S,
                )
        expected = {name: ("hung", 1, host.name, True, True) for name, (_, host) in cells.items()}
        assert seen == expected

    def test_once_the_link_is_back_the_next_run_works(self, lab: Lab) -> None:
        first, second = lab.others[:2]
        with Driven(lab, places(first, second), timeouts=HASTY) as run:
            run.until("serving")
            second.cut()
            run.until("failure")
        second.connect()
        with Driven(lab, places(first, second)) as run:
            run.ask("a b c", 9)
            answer = run.until("answer")
            assert (run.end(), answer["token_ids"]) == (0, stub_answer("a b c", 2, 9))

    def test_a_blip_that_is_shorter_than_the_limit_is_survived(self, lab: Lab) -> None:
        first, second = lab.others[:2]
        second.connect(delay_ms=5)
        with Driven(lab, places(first, second), timeouts={**HASTY, "silence_s": 5}) as run:
            run.until("serving")
            run.ask("a b c", 60)
            run.until("token", index=5)
            second.connect(delay_ms=5, outage_s=1.2)
            answer = run.until("answer")
            assert (run.end(), answer["token_ids"], run.all("failure")) == (
                0,
                stub_answer("a b c", 2, 60),
                [],
            )


class TestSlowLink:
    def test_a_line_that_takes_longer_than_the_limit_is_no_silence(self, lab: Lab) -> None:
        # Pipes and ssh take the whole line at once, so that this end sees nothing of it move.
        host = lab.others[0]
        prompt = " ".join(f"{i:07}" for i in range(50_000))
        with Driven(lab, places(host), timeouts=HASTY) as run:
            run.until("serving")
            host.connect(rate_mbit=1)
            run.ask(prompt, 1, chunk=60_000)
            tokenized = run.until("op", op="tokenize")
            host.connect()
            run.until("answer")
            assert (run.end(), run.all("failure"), tokenized["duration_ms"] > 3000) == (0, [], True)

    def test_a_host_that_loads_over_a_full_link_is_waited_for(self, lab: Lab) -> None:
        first, host = lab.others[:2]
        odd = {"program": lab.program("odd_worker"), "model_id": "load-takes-6-s"}
        timeouts = {**HASTY, "idle_silence_s": 3.0}
        with Driven(lab, [*places(first), *places(host, **odd)], timeouts=timeouts) as run:
            run.until("status", stage=1, phase="loading")
            # No packet is dropped: TCP may double its pauses beyond any limit where some are.
            host.connect(rate_mbit=1, queue_s=6)
            # Something else fills the link meanwhile, as a download of weights does.
            flood = lab.popen(*lab.ssh_command.split(), host.address, "head -c 700000 /dev/zero")
            run.until("serving")
            flooded = flood.communicate(timeout=30)[0]
            run.ask("a b c", 3)
            answer = run.until("answer")
            assert (run.end(), answer["token_ids"], run.all("failure"), len(flooded)) == (
                0,
                stub_answer("a b c", 2, 3),
                [],
                700_000,
            )
