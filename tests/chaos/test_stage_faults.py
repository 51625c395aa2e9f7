"""Stages that break a rule: the right class, one sentence, no process left, in bounded time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from orchestrator import __version__
from orchestrator.failures import (
    Crashed,
    Hung,
    NotReady,
    ProtocolViolation,
    SpawnFailed,
    StageFailure,
    VersionMismatch,
)
from orchestrator.stage import StageClient
from orchestrator.timeouts import Timeouts
from tests.support.stages import PATIENT, ROOT, MemoryRecorder, peer_spec, stub_spec
from worker.protocol.ops import Tokenize, TokensReply

HASTY = replace(PATIENT, silence_s=1.0)


def failure_of(
    name: str, timeouts: Timeouts = PATIENT, recorder: MemoryRecorder | None = None
) -> StageFailure:
    """Start the peer, ask one op, and return the failure that this ends in."""

    async def run() -> StageFailure:
        stage = StageClient(
            peer_spec(name), recorder=recorder or MemoryRecorder(), timeouts=timeouts
        )
        try:
            with pytest.raises(StageFailure) as caught:
                await stage.start()
                await stage.call(Tokenize(request_id="r", prompt="a b"))
            assert stage.failure is caught.value
            return caught.value
        finally:
            await stage.aclose()

    return asyncio.run(run())


CASES: list[tuple[str, type[StageFailure], str]] = [
    (
        "dies_at_start",
        SpawnFailed,
        (
            "ended with exit code 7 before its first line: no such device; start the worker there "
            "by hand"
        ),
    ),
    (
        "dies_mid_op",
        Crashed,
        (
            "was killed by SIGKILL while serving tokenize: by someone or something on that host; "
            "nothing here points to memory"
        ),
    ),
    (
        "garbage_mid_stream",
        ProtocolViolation,
        (
            "wrote a line that is no message (invalid JSON: Expecting value: line 1 column 1 (char "
            "0)): 'Loading weights: 100%'"
        ),
    ),
    (
        "garbles_an_op_event",
        ProtocolViolation,
        (
            "wrote a line that is no message (it begins as an op event and is no JSON): "
            '\'{"event":"op","op":"pi Loading weights: 100%}\''
        ),
    ),
    (
        "answers_another",
        ProtocolViolation,
        "answered request 'someone-else', which was not asked",
    ),
    (
        "answers_wrongly",
        ProtocolViolation,
        "answered tokenize wrongly: 'tokens' must be a list of ints",
    ),
    (
        "over_long_line",
        ProtocolViolation,
        "wrote a line of more than 268435456 bytes, which is the limit",
    ),
    (
        "much_noise",
        ProtocolViolation,
        (
            "wrote more than 65536 bytes before its first message; make the login scripts there "
            "silent for commands that are not interactive"
        ),
    ),
    (
        "other_version",
        VersionMismatch,
        (
            "speaks protocol 2.0 (stageline 9.9), this orchestrator speaks protocol 1.0 (stageline "
            f"{__version__}); leave code=installed away for that host, or install stageline "
            f"{__version__} there"
        ),
    ),
    (
        "other_product",
        VersionMismatch,
        (
            "speaks protocol 1.0 (stageline 9.9), this orchestrator speaks protocol 1.0 (stageline "
            f"{__version__}); leave code=installed away for that host, or install stageline "
            f"{__version__} there"
        ),
    ),
    ("closes_stdout", ProtocolViolation, "closed its stdout but goes on running"),
    ("closes_stdin", ProtocolViolation, "closed its stdin but goes on running"),
    (
        "half_line",
        Crashed,
        (
            "was killed by SIGABRT while serving tokenize: a library gave up, often because memory "
            "could not be allocated"
        ),
    ),
    ("ready_twice", ProtocolViolation, "said twice that it is ready"),
    (
        "other_stage",
        ProtocolViolation,
        "says that it is stage 0 of 2, but was started as stage 0 of 1",
    ),
    ("load_failed", NotReady, "cannot serve: config.json is missing in /m; give a model"),
    ("no_memory", NotReady, "cannot serve: needs 9.0 GiB, 4.0 GiB are free"),
    ("refuses_nothing", ProtocolViolation, "refused what was not asked: invalid JSON"),
]


@pytest.mark.parametrize(("name", "kind", "cause"), CASES, ids=[case[0] for case in CASES])
def test_a_broken_rule_ends_in_its_sentence(
    name: str, kind: type[StageFailure], cause: str
) -> None:
    recorder = MemoryRecorder()
    failure = failure_of(name, recorder=recorder)
    sentence = f"stage 0 on {name} {cause}"
    assert (type(failure), str(failure)) == (kind, sentence)
    assert [record.sentence for record in recorder.failures] == [sentence]
    assert [record.sentence for record in recorder.exits] == [sentence]


def test_an_error_in_the_orchestrators_own_code_ends_the_run_and_is_not_a_hang() -> None:
    class Broken(MemoryRecorder):
        def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
            raise KeyError("a bug")

    failure = failure_of("honest", recorder=Broken())
    assert (str(failure), failure.exit_code) == (
        (
            "stage 0 on honest cannot be followed any more, by an error of the orchestrator: "
            "KeyError('a bug')"
        ),
        1,
    )


def test_a_stage_is_lost_at_the_op_behind_the_one_that_it_has_answered() -> None:
    told: list[tuple[StageFailure, object]] = []
    first, second = Tokenize(request_id="r", prompt="a b"), Tokenize(request_id="s", prompt="c")

    async def run() -> list[object]:
        stage = StageClient(
            peer_spec("dies_behind_an_answer"),
            recorder=MemoryRecorder(),
            timeouts=PATIENT,
            on_failure=lambda *what: told.append(what),
        )
        try:
            await stage.start()
            calls = (stage.call(first), stage.call(second))
            return list(await asyncio.gather(*calls, return_exceptions=True))
        finally:
            await stage.aclose()

    answer, failure = asyncio.run(run())
    assert answer == TokensReply(tokens=(0, 1))
    assert isinstance(failure, Crashed)
    assert told == [(failure, second)]
    assert told[0][1] is second


def test_a_stopped_stage_is_found_by_its_silence() -> None:
    failure = failure_of("stops_mid_op", HASTY)
    assert (type(failure), str(failure)) == (
        Hung,
        (
            "stage 0 on stops_mid_op does not answer: nothing came from it for 1 s while serving "
            "tokenize; it is stopped, or its host or the link to it is down"
        ),
    )


def test_a_stage_that_answers_pings_only_is_found_by_the_ops_deadline() -> None:
    failure = failure_of("never_answers", replace(PATIENT, op_s=0.5))
    assert (type(failure), str(failure)) == (
        Hung,
        "stage 0 on never_answers did not answer tokenize within 0.5 s; it or its host is too slow",
    )


def test_a_stage_that_never_speaks_is_given_up() -> None:
    failure = failure_of("never_speaks", replace(PATIENT, hello_s=0.5))
    assert (type(failure), str(failure)) == (
        NotReady,
        (
            "stage 0 on never_speaks wrote no first message within 0.5 s; check that a login there "
            "works and the host is not overloaded, or raise --start-timeout-s"
        ),
    )


def test_a_stage_that_never_gets_ready_is_given_up_naming_its_last_event() -> None:
    failure = failure_of("never_ready", replace(PATIENT, ready_s=0.5))
    assert (type(failure), str(failure)) == (
        NotReady,
        (
            "stage 0 on never_ready was not ready within 0.5 s (last event: loading_model); raise "
            "--start-timeout-s if it is only slow"
        ),
    )


def test_the_ladder_ends_what_ignores_everything_and_its_children_within_its_bounds() -> None:
    recorder = MemoryRecorder()
    limits = replace(PATIENT, exit_s=0.4, terminate_s=0.4)

    async def run() -> float:
        stage = StageClient(peer_spec("does_not_end"), recorder=recorder, timeouts=limits)
        await stage.start()
        start_s = time.monotonic()
        await stage.aclose()
        return time.monotonic() - start_s

    took_s = asyncio.run(run())
    assert [(end.signal, end.expected) for end in recorder.exits] == [("SIGKILL", True)]
    assert 0.8 <= took_s < 0.8 + limits.kill_s


async def stop(pid: int) -> None:
    """Stop a process and wait until it is: until then one of its threads may still answer."""
    process = psutil.Process(pid)
    process.suspend()
    while process.status() != psutil.STATUS_STOPPED:
        await asyncio.sleep(0)


def test_a_stopped_worker_is_not_waited_for() -> None:
    recorder = MemoryRecorder()

    async def run() -> float:
        stage = StageClient(stub_spec(), recorder=recorder, timeouts=replace(PATIENT, mute_s=0.5))
        ready = await stage.start()
        await stop(ready.pid)
        start_s = time.monotonic()
        await stage.aclose()
        return time.monotonic() - start_s

    took_s = asyncio.run(run())
    assert [(end.signal, end.expected) for end in recorder.exits] == [("SIGKILL", True)]
    assert 1.0 <= took_s < 4  # both rungs end early; unasked they would take 13 s


def test_a_second_interrupt_skips_the_rungs() -> None:
    recorder = MemoryRecorder()
    limits = replace(PATIENT, exit_s=60, terminate_s=60)

    async def run() -> None:
        stage = StageClient(peer_spec("does_not_end"), recorder=recorder, timeouts=limits)
        await stage.start()
        closing = asyncio.ensure_future(stage.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(run())
    assert [(end.signal, end.expected) for end in recorder.exits] == [("SIGKILL", True)]


@pytest.mark.parametrize("when", ["loading", "idle", "busy"])
def test_kill_9_of_the_orchestrator_leaves_no_worker(when: str) -> None:
    """Real workers; `busy`: in the middle of an op that would never end."""
    script = Path(__file__).parents[1] / "support" / "pipeline_run.py"
    run = subprocess.Popen(
        [sys.executable, str(script), when],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
    alive_before = [worker.is_running() for worker in workers]
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert (alive_before, alive) == ([True, True], [])
