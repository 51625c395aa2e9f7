"""No worker outlives its orchestrator, no finished reply is lost, no print reaches the wire."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.worker_process import ROOT, WorkerProcess, stub_worker, worker_environment

ODD = (sys.executable, "-P", str(ROOT / "tests" / "support" / "odd_worker.py"))
# The grace is 2 s (worker.channel.EOF_GRACE_S); the rest is for a machine full of tests.
LIMIT_S = 6.0
STAGE = ("--stage", "0", "--num-stages", "2")


def odd_worker(*args: str, model: str = "odd") -> WorkerProcess:
    """Start the misbehaving worker."""
    return WorkerProcess(*STAGE, "--model-id", model, *args, program=ODD)


def wait_for_text(worker: WorkerProcess, text: str) -> None:
    """Wait until the worker has said something on stderr."""
    end_s = time.monotonic() + 20
    while text not in worker.stderr_text():
        assert time.monotonic() < end_s, worker.stderr_text()
        worker.process.poll()
        time.sleep(0.01)  # Polling a file, which has no event to wait for.


def busy_worker(*args: str) -> WorkerProcess:
    """Return a worker in the middle of an op that never ends."""
    worker = odd_worker(*args)
    worker.ready()
    worker.send({"op": "tokenize", "request_id": 1, "prompt": "hang"})
    wait_for_text(worker, "hanging")
    return worker


def seconds_of(act: Callable[[], object]) -> float:
    """Return how long something takes."""
    start_s = time.monotonic()
    act()
    return time.monotonic() - start_s


def test_no_print_of_any_kind_reaches_the_wire() -> None:
    with odd_worker() as worker:
        worker.event("boot_profile")
        reply = worker.call(op="tokenize", request_id=1, prompt="print")
        worker.stdin.close()
        assert worker.end() == 0  # `end` parses every line.
        noise = worker.stderr_text()
    assert reply == {"request_id": 1, "tokens": [557]}
    ways = ("print", "sys.stdout", "sys.__stdout__", "fd 1", "C", "a child")
    assert [way for way in ways if f"noise by {way}\n" not in noise] == []


def test_pings_are_answered_while_loading_and_during_a_long_op() -> None:
    with odd_worker(model="load-hangs") as loading, busy_worker() as busy:
        loading.event("importing")
        pongs = [worker.call(op="ping", request_id="p") for worker in (loading, busy)]
    assert pongs == [{"request_id": "p", "pong": True, "busy": True}] * 2


@pytest.mark.parametrize(
    ("prompt", "code", "says"),
    [
        ("raise", "internal", "ValueError: an odd model"),
        ("exhaust", "out_of_memory", "4 GiB asked"),
        ("memory", "out_of_memory", "4 GiB asked"),
    ],
)
def test_whatever_an_op_does_the_worker_serves_on(prompt: str, code: str, says: str) -> None:
    with odd_worker() as worker:
        reply = worker.call(op="tokenize", request_id="r", prompt=prompt)
        after = worker.call(op="tokenize", request_id="s", prompt="x")
    assert (reply["request_id"], reply["code"], says in reply["error"]) == ("r", code, True)
    assert after == {"request_id": "s", "tokens": [120]}


@pytest.mark.parametrize(
    ("model", "code", "says"),
    [
        ("load-fails", 3, "config.json"),
        ("load-too-big", 4, "3 GiB"),
        ("load-raises", 3, "model.layers.0"),
    ],
)
def test_a_failed_load_is_told_in_events_on_stderr_and_by_exit_code(
    model: str, code: int, says: str
) -> None:
    with odd_worker(model=model) as worker:
        ended = worker.end()
        text = worker.stderr_text()
    kinds = [line["event"] for line in worker.lines]
    assert (ended, kinds) == (code, ["starting", "model_load_failed", "exiting"])
    assert says in worker.lines[1]["error"] and says in text
    assert ("traceback" in worker.lines[1]) == (model == "load-raises")


def test_an_error_nobody_foresaw_is_told_before_the_end() -> None:
    with odd_worker(model="no-facts") as worker:
        code = worker.end()
        text = worker.stderr_text()
    told = [(line["event"], line.get("error"), line.get("code")) for line in worker.lines[1:]]
    assert told == [("uncaught_exception", "no facts", None), ("exiting", None, 1)]
    assert code == 1 and "Traceback" in text


def test_eof_while_loading_ends_a_worker_that_has_an_owner() -> None:
    with odd_worker("--nonce", "n", model="load-hangs") as worker:
        worker.event("importing")
        worker.stdin.close()
        assert seconds_of(worker.end) < LIMIT_S
        assert (worker.process.returncode, worker.lines[-1]["reason"]) == (5, "stdin_eof")


def test_eof_during_a_long_op_ends_a_worker_that_has_an_owner() -> None:
    with busy_worker("--nonce", "n") as worker:
        worker.stdin.close()
        assert seconds_of(worker.end) < LIMIT_S
        assert (worker.process.returncode, worker.lines[-1]["reason"]) == (5, "stdin_eof")


def test_both_pipes_closed_end_any_busy_worker() -> None:
    with busy_worker() as worker:
        worker.stdin.close()
        worker.stdout.close()
        assert seconds_of(lambda: worker.process.wait(10)) < LIMIT_S
        assert worker.process.returncode == 5


def test_a_socket_that_closes_ends_any_busy_worker() -> None:
    # sshd may give one socket for stdin and stdout in place of two pipes.
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = subprocess.Popen(
            [*ODD, *STAGE, "--model-id", "m"],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            env=worker_environment(),
        )
        theirs.close()
        ours.sendall(b'{"op":"tokenize","prompt":"hang"}\n')
        with ours.makefile("rb") as lines:
            while b"boot_profile" not in lines.readline():
                pass
        ours.close()
        assert seconds_of(lambda: worker.wait(20)) < LIMIT_S
    assert worker.returncode == 5


def test_a_file_of_ops_is_answered_to_its_end_without_an_owner(tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with odd_worker() as worker:
        worker.send(
            {"op": "tokenize", "request_id": 1, "prompt": f"wait-for {fifo}"},
            {"op": "tokenize", "request_id": 2, "prompt": "x"},
        )
        worker.stdin.close()
        wait_for_text(worker, "waiting")
        fifo.write_text("7", encoding="ascii")
        assert worker.end() == 0
    assert [reply.get("tokens") for reply in worker.replies()] == [[7], [120]]


def test_a_closed_stdout_is_exit_5() -> None:
    with stub_worker() as worker:
        worker.ready()
        worker.stdout.close()
        worker.send({"op": "tokenize", "request_id": 1, "prompt": "x"})
        assert worker.process.wait(10) == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_an_idle_worker_with_its_last_words(number: signal.Signals) -> None:
    with stub_worker() as worker:
        worker.event("boot_profile")
        worker.signal(number)
        code = worker.end()
    told = [(line["event"], line.get("signal"), line.get("code")) for line in worker.lines[-2:]]
    assert told == [("signal_received", number.name, None), ("exiting", None, 128 + number)]
    assert code == 128 + number


def test_a_signal_while_loading_ends_at_once() -> None:
    with odd_worker(model="load-hangs") as worker:
        worker.event("importing")
        worker.signal(signal.SIGTERM)
        assert seconds_of(worker.end) < LIMIT_S
        assert worker.process.returncode == 143


def test_sigterm_loses_no_finished_reply(tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    with odd_worker() as worker:
        # Far more than a pipe holds is on its way out, and an op is in work.
        worker.event("boot_profile")
        worker.send(
            *({"op": "tokenize", "request_id": i, "prompt": "count 99999"} for i in range(6)),
            {"op": "tokenize", "request_id": 6, "prompt": f"wait-for {fifo}"},
            {"op": "tokenize", "request_id": 7, "prompt": "x"},
        )
        wait_for_text(worker, "waiting")
        worker.signal(signal.SIGTERM)
        worker.event("signal_received")
        fifo.write_text("7", encoding="ascii")
        code = worker.end()
    replies = worker.replies()
    assert [reply["request_id"] for reply in replies] == list(range(7))
    assert [len(reply["tokens"]) for reply in replies] == [99999] * 6 + [1]
    assert (code, worker.lines[-1]["reason"]) == (143, "signal SIGTERM")


def test_a_second_signal_ends_a_worker_that_cannot_finish() -> None:
    with busy_worker() as worker:
        worker.signal(signal.SIGTERM)
        worker.event("signal_received")
        worker.signal(signal.SIGTERM)
        assert seconds_of(worker.end) < LIMIT_S
        assert worker.process.returncode == 143


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("owner", [[], ["--nonce", "n"]], ids=["no owner", "owner"])
def test_kill_9_of_the_parent_leaves_no_worker(is_busy: bool, owner: list[str]) -> None:
    # The parent keeps the worker's pipes and tells its pid; it is killed without a word.
    parent_code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen(sys.argv[2:], stdin=-1, stdout=-1)\n"
        "while b'boot_profile' not in p.stdout.readline(): pass\n"
        "if sys.argv[1] == 'True':\n"
        '    p.stdin.write(b\'{"op":"tokenize","prompt":"hang"}\\n\'); p.stdin.flush()\n'
        '    p.stdin.write(b\'{"op":"ping"}\\n\'); p.stdin.flush()\n'
        "    while b'pong' not in p.stdout.readline(): pass\n"
        "print(p.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code, str(is_busy), *ODD, *STAGE, "--model-id", "m", *owner],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=worker_environment(),
    )
    assert parent.stdin and parent.stdout
    worker = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    gone, _ = psutil.wait_procs([worker], timeout=LIMIT_S)
    assert gone == [worker]


def test_64_mib_lines_both_ways_do_not_lock_up() -> None:
    seq_len = 64 * 1024 * 1024 * 3 // 4 // 32
    body = b"A" * (seq_len * 32 // 3 * 4)
    line = b'{"op":"forward_range","request_id":%d,"position":0,"seq_len":%d,"hidden_b64":"%s"}\n'
    middle = ("--stage", "1", "--num-stages", "3", "--model-id", "m")
    with WorkerProcess(*middle, program=ODD) as worker:
        worker.event("boot_profile")
        # Both requests are written before any reply is read: each side has a full pipe.
        writer = threading.Thread(
            target=lambda: worker.send(*(line % (i, seq_len, body) for i in range(2)))
        )
        writer.start()
        lines = [worker.read_line(60) for _ in range(4)]
        writer.join()
    replies = [line for line in lines if line.startswith(b'{"request_id":')]
    assert replies == [
        b'{"request_id":%d,"seq_len":%d,"hidden_b64":"%s"}' % (i, seq_len, body) for i in range(2)
    ]


def test_events_of_threads_never_cut_a_reply() -> None:
    with odd_worker("--heartbeat-s", "0.001") as worker:
        worker.event("boot_profile")
        worker.send(
            *({"op": "tokenize", "request_id": i, "prompt": "count 20000"} for i in range(40))
        )
        worker.stdin.close()
        assert worker.end() == 0
    assert [len(reply["tokens"]) for reply in worker.replies()] == [20000] * 40
    assert any(line.get("event") == "heartbeat" for line in worker.lines)
    assert worker.lines[-1]["event"] == "exiting"
