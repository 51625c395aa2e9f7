"""A stub worker as a process: handshake, ready line, events, pings, junk, big lines, exits."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.messages import junk_lines
from tests.support.worker_process import WorkerProcess, stub_worker
from worker import __version__
from worker.protocol.codec import MAX_LINE_BYTES, PROTOCOL_VERSION


def without(line: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in names}


def test_the_first_line_is_the_handshake_after_a_newline() -> None:
    with stub_worker("--nonce", "n 1", stage=1) as worker:
        assert worker.read_line() == b""
        starting = json.loads(worker.read_line())
    # What is the host's, beside the envelope.
    envelope = ("wall_ms", "uptime_ms", "python", "torch", "transformers", "host", "oom_kills")
    assert without(starting, *envelope) == {
        "event": "starting",
        "protocol_version": PROTOCOL_VERSION,
        "version": __version__,
        "pid": worker.process.pid,
        "nonce": "n 1",
        "stub": True,
        "stage": 1,
    }


def test_the_ready_line_and_its_mirror() -> None:
    with stub_worker(stage=1, num_stages=3) as worker:
        ready = worker.ready()
        mirror = worker.event("pp_worker_ready")
        profile = worker.event("boot_profile")
    # which encodings there are depends on the libraries of the host
    assert without(ready, "encodings") == {
        "status": "ready",
        "pid": worker.process.pid,
        "stage": 1,
        "num_stages": 3,
        "protocol_version": PROTOCOL_VERSION,
        "version": __version__,
        "layer_range": [42, 85],
        "total_blocks": 128,
        "hidden_dim": 16,
        "vocab_size": 32,
        "model_type": "stub",
        "quantization": "stub",
        "capabilities": [
            *("ping", "tokenizer", "chat_template", "tools", "logprobs", "bias"),
            *("score_tokens", "vocabulary", "crop", "as_steps", "sample_steps", "together"),
            *(["chain"] if "chain" in ready["capabilities"] else []),  # Where it can have a key.
        ],
        "max_rows": 16,
    }
    assert mirror["layer_range"] == "42:85"
    assert list(profile["phases_ms"]) == ["starting", "pp_worker_ready"]


def test_a_whole_model_in_one_worker_serves_both_ends() -> None:
    with stub_worker(num_stages=1) as one, stub_worker() as first, stub_worker(stage=1) as last:
        hidden = [w.call(op="embed_and_forward", tokens=[1, 2]) for w in (one, first)]
        sampled = [
            w.call(op="forward_and_sample", position=0, **without(hidden[0], "request_id"))
            for w in (one, last)
        ]
    assert hidden[0] == hidden[1]
    assert sampled[0] == sampled[1]


def test_an_op_event_follows_its_reply() -> None:
    with stub_worker() as worker:
        worker.event("boot_profile")
        worker.send(
            {"op": "tokenize", "request_id": "a", "prompt": "x"},
            {"op": "detokenize", "request_id": "b", "tokens": [1]},
        )
        lines = [json.loads(worker.read_line()) for _ in range(4)]
    shown = [
        (line.get("request_id"), line.get("op"), line.get("rid"), line.get("ok"), line.get("code"))
        for line in lines
    ]
    assert shown == [
        ("a", None, None, None, None),
        (None, "tokenize", "a", True, None),
        ("b", None, None, None, "wrong_role"),
        (None, "detokenize", "b", False, "wrong_role"),
    ]


def test_shutdown_answers_what_came_before_and_nothing_after() -> None:
    with stub_worker() as worker:
        worker.send(
            {"op": "tokenize", "request_id": 1, "prompt": "x"},
            {"op": "shutdown", "request_id": 2},
            {"op": "tokenize", "request_id": 3, "prompt": "x"},
        )
        code = worker.end()
    assert [reply["request_id"] for reply in worker.replies()] == [1, 2]
    assert (code, worker.lines[-1]["reason"], worker.lines[-1]["code"]) == (0, "shutdown", 0)


def test_the_end_of_stdin_is_exit_0_after_everything_is_answered() -> None:
    with stub_worker() as worker:
        worker.send(*({"op": "tokenize", "request_id": i, "prompt": "x"} for i in range(200)))
        worker.send(b'{"op":"tokenize","request_id":200,"prompt":"no newline"}')
        worker.stdin.close()
        code = worker.end()
    assert [reply["request_id"] for reply in worker.replies()] == list(range(201))
    assert without(worker.lines[-1], "wall_ms", "uptime_ms") == {
        "event": "exiting",
        "code": 0,
        "reason": "stdin_eof",
        "requests_served": 201,
        "stage": 0,
    }
    assert code == 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--stub"], "no layers chosen"),
        (["--stub", "--stage", "0", "--num-stages", "2", "--shard-start", "0"], "both given"),
        (["--stage", "0", "--num-stages", "2"], "no model"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_2(args: list[str], says: str) -> None:
    with WorkerProcess(*args) as worker:
        assert (worker.end(), worker.lines) == (2, [])
        text = worker.stderr_text()
    assert says in text
    assert text.count("\n") == 1


def test_layers_past_the_model_are_told_in_an_event_too() -> None:
    with WorkerProcess("--stub", "--shard-start", "0", "--shard-end", "129") as worker:
        code = worker.end()
        text = worker.stderr_text()
    kinds = [line["event"] for line in worker.lines]
    assert (code, kinds) == (2, ["starting", "model_load_failed", "exiting"])
    assert worker.lines[1]["error"] in text


def test_heartbeats_come_by_themselves() -> None:
    with stub_worker("--heartbeat-s", "0.05") as worker:
        worker.event("boot_profile")  # Before it is ready there are no caches to count.
        beats = [worker.event("heartbeat") for _ in range(2)]
    assert all(beat["rss_mb"] > 1 and beat["sessions"] == 0 for beat in beats)


def test_a_lease_that_is_not_renewed_ends_the_worker() -> None:
    with stub_worker("--lease-s", "0.3") as worker:
        code = worker.end()
    assert (code, worker.lines[-1]["reason"]) == (5, "lease_expired")


def test_junk_is_answered_one_error_a_line_and_the_worker_serves_on() -> None:
    with stub_worker() as worker:
        worker.event("boot_profile")

        @settings(max_examples=60)
        @given(lines=st.lists(junk_lines(), min_size=1, max_size=12))
        def check(lines: list[bytes]) -> None:
            cleaned = [line.replace(b"\n", b"") for line in lines]
            expected = sum(1 for line in cleaned if line and not line.isspace())
            worker.send(*(line + b"\n" for line in cleaned))
            answers = [worker.reply() for _ in range(expected)]
            assert worker.call(op="tokenize", request_id="alive", prompt="x") == {
                "request_id": "alive",
                "tokens": [120],
            }
            # A valid request may come out of the junk; everything else is one error.
            assert all("error" in answer or "request_id" in answer for answer in answers)

        check()


def test_a_line_over_the_limit_is_refused_and_skipped() -> None:
    with stub_worker() as worker:
        worker.event("boot_profile")
        piece = b"x" * (1 << 20)
        for _ in range(MAX_LINE_BYTES // len(piece) + 1):
            worker.send(piece)
        worker.send(b"\n")
        refused = worker.reply()
        after = worker.call(op="tokenize", request_id=1, prompt="x")
    assert refused["code"] == "bad_json"
    assert str(MAX_LINE_BYTES) in refused["error"]
    assert after == {"request_id": 1, "tokens": [120]}


def test_a_ping_is_answered_while_an_op_is_queued() -> None:
    with stub_worker() as worker:
        worker.ready()
        assert worker.call(op="ping", request_id="p") in (
            {"request_id": "p", "pong": True},
            {"request_id": "p", "pong": True, "busy": True},
        )


def test_descriptors_closed_by_the_parent_do_no_harm() -> None:
    shell = ["sh", "-c", 'exec "$0" "$@" 2>&-', os.sys.executable]  # type: ignore[attr-defined]
    args = ["-P", "-m", "worker", "--stub", "--stage", "0", "--num-stages", "2"]
    with WorkerProcess(*args, program=shell) as worker:
        worker.ready()
        worker.stdin.close()
        assert worker.end() == 0
