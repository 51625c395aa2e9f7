"""One stage client and one process, both well behaved or nearly so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from orchestrator.failures import OpRejected
from orchestrator.specs import StageSpec
from orchestrator.stage import StageClient, StageStatus
from orchestrator.timeouts import Timeouts
from tests.support.stages import PATIENT, MemoryRecorder, odd_spec, peer_spec, stub_spec
from worker.protocol.codec import EventLine, decode_worker_line
from worker.protocol.ops import EmbedAndForward, Tokenize

T = TypeVar("T")


def with_stage(
    spec: StageSpec,
    act: Callable[[StageClient], Awaitable[T]],
    recorder: MemoryRecorder | None = None,
    on_status: Callable[[StageStatus], None] = lambda status: None,
    timeouts: Timeouts = PATIENT,
) -> T:
    """Start the stage, act, close it."""

    async def run() -> T:
        stage = StageClient(
            spec, recorder=recorder or MemoryRecorder(), timeouts=timeouts, on_status=on_status
        )
        try:
            await stage.start()
            return await act(stage)
        finally:
            await stage.aclose()

    return asyncio.run(run())


async def tokenize(stage: StageClient, prompt: str = "one two", rid: str = "r") -> tuple[int, ...]:
    return (await stage.call(Tokenize(request_id=rid, prompt=prompt))).tokens


def test_a_stub_worker_starts_serves_and_ends_as_asked() -> None:
    recorder, phases = MemoryRecorder(), []

    async def act(stage: StageClient) -> tuple[int, ...]:
        return await tokenize(stage, "a b")

    tokens = with_stage(stub_spec(), act, recorder, lambda status: phases.append(status.phase))
    kinds = [
        line.event.kind
        for line in map(decode_worker_line, recorder.lines)
        if isinstance(line, EventLine)
    ]
    assert tokens == (97, 99)
    assert list(dict.fromkeys(phases)) == ["connecting", "loading", "ready", "closed"]
    assert {kinds[0], kinds[-1]} == {"starting", "exiting"}
    assert [(op.op, op.rid, op.ok) for op in recorder.ops] == [
        ("tokenize", "r", True),
        ("shutdown", "stageline:shutdown", True),
    ]
    assert [(end.exit_code, end.signal, end.expected) for end in recorder.exits] == [
        (0, None, True)
    ]
    assert recorder.failures == []


def test_a_refused_op_leaves_the_stage_serving() -> None:
    async def act(stage: StageClient) -> tuple[str, tuple[int, ...]]:
        with pytest.raises(OpRejected) as caught:
            await tokenize(stage)
        return str(caught.value), await tokenize(stage)

    assert with_stage(peer_spec("refuses_ops"), act) == (
        "stage 0 on refuses_ops refused tokenize (context_full): 9 of 8 positions",
        (0, 1),
    )


def test_replies_find_their_requests_in_any_order_and_fifo_within_one() -> None:
    async def act(stage: StageClient) -> list[tuple[int, ...]]:
        asked = [("a b c", "x"), ("a b", "y"), ("a", "x")]
        return await asyncio.gather(*(tokenize(stage, prompt, rid) for prompt, rid in asked))

    # The peer answers y first, then both of x in their order.
    assert with_stage(peer_spec("answers_backwards"), act) == [(0, 1, 2), (0, 1), (0,)]


def test_the_reply_to_a_cancelled_call_is_dropped_not_given_to_the_next() -> None:
    async def act(stage: StageClient) -> list[tuple[int, ...]]:
        gone = asyncio.ensure_future(tokenize(stage, "a b c", "x"))
        await asyncio.sleep(0)
        gone.cancel()
        return await asyncio.gather(tokenize(stage, "a", "x"), tokenize(stage, "a b", "y"))

    assert with_stage(peer_spec("answers_backwards"), act) == [(0,), (0, 1)]


def test_noise_before_hello_is_tolerated_and_kept() -> None:
    recorder = MemoryRecorder()
    assert with_stage(peer_spec("noise_before_hello"), tokenize, recorder) == (0, 1)
    assert (recorder.lines[0], recorder.lines[1000]) == (
        b"\x1b[1mWelcome!\x1b[0m\n",
        b"no newline here\n",
    )


def test_a_flood_on_stderr_stops_nobody() -> None:
    recorder = MemoryRecorder()
    assert with_stage(peer_spec("stderr_flood"), tokenize, recorder) == (0, 1)
    assert recorder.stderr_bytes >= 8 * 1024 * 1024 - 20


def test_long_lines_both_ways_at_once_do_not_deadlock() -> None:
    """64 MiB replies while long prompts are being sent: neither side waits for the other."""
    embed = EmbedAndForward(request_id="h", tokens=(1,))

    async def act(stage: StageClient) -> tuple[list[int], list[int]]:
        prompts = ["x" * (32 * 1024 * 1024)] * 2
        hidden, tokens = await asyncio.gather(
            asyncio.gather(*(stage.call(embed) for _ in range(2))),
            asyncio.gather(*(tokenize(stage, prompt) for prompt in prompts)),
        )
        return [len(reply.hidden_b64) for reply in hidden], [len(ids) for ids in tokens]

    assert with_stage(peer_spec("big_replies"), act) == (
        [64 * 1024 * 1024] * 2,
        [1, 1],
    )


def test_a_busy_worker_that_answers_pings_is_not_taken_for_hung(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    timeouts = replace(PATIENT, silence_s=2.0)

    async def act(stage: StageClient) -> tuple[bool, tuple[int, ...]]:
        call = asyncio.ensure_future(tokenize(stage, f"wait-for {fifo}"))
        done, _ = await asyncio.wait({call}, timeout=1.5 * timeouts.silence_s)
        await asyncio.to_thread(fifo.write_text, "17")
        return bool(done), await call

    assert with_stage(odd_spec(), act, timeouts=timeouts) == (False, (17,))


def test_closing_in_the_middle_of_an_op_ends_the_worker_within_the_first_rungs() -> None:
    recorder = MemoryRecorder()

    async def act(stage: StageClient) -> None:
        waiting = asyncio.ensure_future(tokenize(stage, "hang"))
        await asyncio.sleep(0)
        await stage.aclose()
        with pytest.raises(ConnectionError, match="the stage was closed"):
            await waiting

    with_stage(odd_spec(), act, recorder)
    assert [(end.signal, end.expected) for end in recorder.exits] == [(None, True)]


def test_calls_after_the_end_say_that_the_stage_is_not_open() -> None:
    async def act(stage: StageClient) -> None:
        await stage.aclose()
        with pytest.raises(ConnectionError, match="stage 0 on local is not open"):
            await tokenize(stage)

    with_stage(stub_spec(), act)
