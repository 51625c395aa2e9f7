"""Real runs of stub stages leave bundles that tell what ran and what went wrong first."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bundle.location import bundles_in
from orchestrator.bundle.lookup import ready_of
from orchestrator.bundle.reader import read_bundle
from tests.support.worker_process import worker_environment

DEADLINE_S = 30
RUN = ("run", "--stub", "--local", "3", "--prompt", "hello big world", "--ignore-eos")


def orchestrator(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "orchestrator", *words)


def shown(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        orchestrator("bundle", "show", str(folder), "--json"),
        env=worker_environment(),
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    values: dict[str, Any] = json.loads(done.stdout)
    return values


@contextmanager
def endless_run(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run that never ends by itself; some tokens have been printed."""
    words = ("--max-new-tokens", "10000000", "--restarts", "0", "--bundle-dir", str(folder))
    command = orchestrator(*RUN, *words)
    run = subprocess.Popen(
        command, env=worker_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert run.stdout is not None
    with run:
        try:
            text = b""
            while text.count(b" ") < 3:
                assert select.select([run.stdout], [], [], DEADLINE_S)[0], "no token came"
                piece = os.read(run.stdout.fileno(), 4096)
                assert piece, "the run ended by itself"
                text += piece
            yield run
        finally:
            run.kill()


def read_to_the_end(run: subprocess.Popen[bytes]) -> int:
    assert run.stdout is not None
    while select.select([run.stdout], [], [], DEADLINE_S)[0]:
        if not os.read(run.stdout.fileno(), 65536):
            break
    return run.wait(DEADLINE_S)


def pids(folder: Path) -> list[int]:
    bundle = read_bundle(bundles_in(folder)[-1])
    ready = [ready_of(bundle, stage) for stage in range(3)]
    return [line.pid for line in ready if line is not None]


def operations(report: dict[str, Any]) -> dict[tuple[int, str], int]:
    return {(op["stage"], op["op"]): op["count"] for op in report["ops"]}


def test_a_finished_run_tells_what_ran_where_and_how_long(tmp_path: Path) -> None:
    subprocess.run(
        orchestrator(*RUN, "--max-new-tokens", "6", "--bundle-dir", str(tmp_path)),
        env=worker_environment(),
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    report = shown(tmp_path)
    counts = operations(report)
    counts.pop((2, "detokenize"), None)  # How often that is asked is the orchestrator's affair.
    assert (counts, report["findings"], report["problems"], report["exit_code"]) == (
        {
            (0, "tokenize"): 1,
            (0, "embed_and_forward"): 1,
            (0, "decode_step"): 5,
            (0, "release"): 1,
            (1, "forward_range"): 6,
            (1, "release"): 1,
            (2, "forward_and_sample"): 6,
            (2, "release"): 1,
        },
        [],
        [],
        0,
    )
    assert [(s["stage"], s["layers"], s["state"]) for s in report["stages"]] == [
        (0, "0:42", "ready"),
        (1, "42:85", "ready"),
        (2, "85:128", "ready"),
    ]
    request = report["requests"][0]
    assert (request["prompt_tokens"], request["completion_tokens"]) == (3, 6)
    assert all(start["ready_ms"] >= start["hello_ms"] for start in report["starts"])
    assert all(op["wire"]["count"] == op["count"] for op in report["ops"])


def test_a_killed_worker_is_the_first_cause(tmp_path: Path) -> None:
    with endless_run(tmp_path) as run:
        os.kill(pids(tmp_path)[1], signal.SIGKILL)
        assert read_to_the_end(run) == 5
    report = shown(tmp_path)
    causes = [f for f in report["findings"] if f["rank"] == "cause"]
    assert [(f["rule"], f["stage"]) for f in causes] == [("killed", 1)]
    assert "SIGKILL" in causes[0]["sentence"]
    assert [stage["state"] for stage in report["stages"]] == ["ready", "failed", "ready"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes by pidfd (Linux)")
def test_a_killed_orchestrator_leaves_what_it_knew(tmp_path: Path) -> None:
    with endless_run(tmp_path) as run:
        workers = [os.pidfd_open(pid) for pid in pids(tmp_path)]
        run.kill()
        assert read_to_the_end(run) == -signal.SIGKILL
    for worker in workers:
        assert select.select([worker], [], [], DEADLINE_S)[0], "a worker outlived its orchestrator"
        os.close(worker)
    report = shown(tmp_path)
    assert [finding["rule"] for finding in report["findings"]] == ["run_without_end"]
    assert [stage["state"] for stage in report["stages"]] == ["ready"] * 3
    assert operations(report)[0, "decode_step"] >= 1
