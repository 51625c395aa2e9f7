"""OpenAI's endpoints over two stub stages: what is asked for is what comes, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings

from tests.support.cli import stub_answer, stub_tokens
from tests.support.openai_bodies import chat_bodies, text_bodies
from tests.support.serving import Server, served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "a b c"}]
CALLED = {"name": "f", "arguments": "[1"}
BAD_CALL = {"role": "assistant", "tool_calls": [{"id": "c", "function": CALLED}]}
ANSWER = stub_answer("a b c", 2, 6)
LONG = 100_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served("--max-choices", "8", "--max-body-bytes", "20000") as running:
        yield running


def ask(server: Server, path: str, **fields: Any) -> Any:
    status, _, data = server.ask("POST", path, {"model": "stub", **fields})
    assert status == 200, data
    return json.loads(data)


def events(server: Server, path: str, **fields: Any) -> list[Any]:
    """Return the objects of a stream; "[DONE]" stands for itself."""
    status, headers, data = server.ask("POST", path, {"model": "stub", "stream": True, **fields})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8"), data
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    lines = [part.removeprefix("data: ") for part in parts]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def words(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def test_a_chat_is_answered_by_what_the_stages_compute(server: Server) -> None:
    reply = ask(server, CHAT, messages=USER, max_tokens=6)
    message = {"role": "assistant", "content": words(ANSWER), "refusal": None}
    assert {name: reply[name] for name in ("object", "model", "choices", "usage")} == {
        "object": "chat.completion",
        "model": "stub",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 6,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_streamed_chat_begins_with_the_role_and_ends_with_the_reason(server: Server) -> None:
    got = events(server, CHAT, messages=USER, max_tokens=3, stream_options={"include_usage": True})
    assert got.pop() == "[DONE]"
    usage = got.pop()
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 6)
    assert [(one["choices"][0]["delta"], one["choices"][0]["finish_reason"]) for one in got] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": f"{ANSWER[0]}"}, None),
        ({"content": f" {ANSWER[1]}"}, None),
        ({"content": f" {ANSWER[2]}"}, None),
        ({}, "length"),
    ]
    assert {one["id"] for one in [*got, usage]} == {usage["id"]}


def test_each_prompt_has_its_answers_in_order(server: Server) -> None:
    prompts = ["a b c", "d e", "f"]
    reply = ask(server, TEXT, prompt=prompts, n=2, max_tokens=4)
    assert [(one["index"], one["text"]) for one in reply["choices"]] == [
        (2 * i + j, words(stub_answer(prompt, 2, 4)))
        for i, prompt in enumerate(prompts)
        for j in range(2)
    ]
    # Two answers to one prompt share its tokens.
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (6, 24)


def test_token_ids_are_a_prompt_as_good_as_its_text(server: Server) -> None:
    # Of the stub's tokens only those of such characters are in its vocabulary.
    text = "\x05 \x07 \x10"
    reply = ask(server, TEXT, prompt=stub_tokens(text), max_tokens=6)
    assert reply["choices"][0]["text"] == words(stub_answer(text, 2, 6))


@pytest.mark.parametrize("stop", [str(ANSWER[3]), ["nothing", f" {ANSWER[3]}"]])
def test_a_stop_string_ends_the_text_before_it_streamed_or_not(server: Server, stop: Any) -> None:
    asked: dict[str, Any] = {"prompt": "a b c", "max_tokens": 6, "stop": stop}
    text = words(ANSWER)
    expected = text[: text.index(stop if isinstance(stop, str) else stop[1])]
    whole = ask(server, TEXT, **asked)["choices"][0]
    chunks = events(server, TEXT, **asked)[:-1]
    streamed = "".join(one["choices"][0]["text"] for one in chunks)
    reason = chunks[-1]["choices"][0]["finish_reason"]
    assert (whole["text"], whole["finish_reason"]) == (streamed, reason) == (expected, "stop")


def test_echo_scores_the_prompt_and_generates_nothing_where_nothing_is_asked_for(
    server: Server,
) -> None:
    ids = [5, *stub_answer("", 2, 0), 7, 9]
    choice = ask(server, TEXT, prompt=ids, echo=True, max_tokens=0, logprobs=2)["choices"][0]
    logprobs = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == ("5 7 9", "length")
    assert (logprobs["tokens"], logprobs["text_offset"]) == ([" 5", " 7", " 9"], [0, 2, 4])
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    for token, logprob, top in zip(
        logprobs["tokens"][1:],
        logprobs["token_logprobs"][1:],
        logprobs["top_logprobs"][1:],
        strict=True,
    ):
        assert (top[token], len(top) in (2, 3), logprob < 0) == (logprob, True, True)


def test_what_lm_eval_asks_for_ends_with_the_one_token_that_it_drops(server: Server) -> None:
    asked = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    reply = ask(server, TEXT, prompt=[[3, 4, 5], [6, 7]], **asked)
    assert [len(one["logprobs"]["token_logprobs"]) for one in reply["choices"]] == [4, 3]
    for choice in reply["choices"]:
        # The stub's own choice is its likeliest token.
        top, chosen = choice["logprobs"]["top_logprobs"], choice["logprobs"]["token_logprobs"]
        assert max(top[-1].values()) == chosen[-1]


def test_chat_logprobs_name_each_token_that_is_shown(server: Server) -> None:
    stop = f" {ANSWER[2]}"
    asked: dict[str, Any] = {"messages": USER, "max_tokens": 6, "logprobs": True, "stop": stop}
    whole = ask(server, CHAT, **asked, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    streamed = [
        entry
        for chunk in events(server, CHAT, **asked, top_logprobs=2)[:-1]
        if chunk["choices"][0]["logprobs"] is not None
        for entry in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert whole == streamed
    assert [one["token"] for one in whole] == [f" {token}" for token in ANSWER[:2]]
    assert [bytes(one["bytes"]).decode() for one in whole] == [one["token"] for one in whole]
    assert [one["top_logprobs"][0]["token"] for one in whole] == [one["token"] for one in whole]


def test_a_bias_bans_and_forces_tokens(server: Server) -> None:
    banned = ask(server, TEXT, prompt="a b c", max_tokens=1, logit_bias={str(ANSWER[0]): -100})
    forced = ask(server, TEXT, prompt="a b c", max_tokens=4, logit_bias={"9": 100})
    assert banned["choices"][0]["text"] != str(ANSWER[0])
    assert forced["choices"][0]["text"] == "9 9 9 9"


def test_many_at_once_are_each_answered_as_alone(server: Server) -> None:
    prompts = [f"p{i} q" for i in range(24)]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda p: ask(server, TEXT, prompt=p, max_tokens=8), prompts))
    assert [one["choices"][0]["text"] for one in replies] == [
        words(stub_answer(prompt, 2, 8)) for prompt in prompts
    ]


def test_models_lists_the_one_that_is_served_and_no_other(server: Server) -> None:
    listed = server.get_json("/v1/models")
    assert [one["id"] for one in listed["data"]] == ["stub"]
    assert server.get_json("/v1/models/stub") == listed["data"][0]
    status, _, data = server.ask("GET", "/v1/models/other/name")
    assert (status, json.loads(data)["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "param"),
    [
        (CHAT, {"model": "x", "messages": USER}, {}, 404, "model"),
        (CHAT, {"model": "stub", "messages": USER, "foo": 1}, {}, 400, "foo"),
        (CHAT, {"model": "stub", "messages": USER, "stream": True, "foo": 1}, {}, 400, "foo"),
        (TEXT, {"model": "stub", "prompt": " "}, {}, 400, "prompt"),
        (TEXT, {"model": "stub", "prompt": ""}, {}, 400, "prompt"),
        (TEXT, {"model": "stub", "prompt": [5, 32]}, {}, 400, "prompt"),
        (TEXT, {"model": "stub", "prompt": "a", "logit_bias": {"32": 1}}, {}, 400, "logit_bias"),
        (CHAT, {"model": "stub", "messages": [BAD_CALL]}, {}, 400, "messages"),
        (TEXT, {"model": "stub", "prompt": " ", "stream": True}, {}, 400, "prompt"),
        (TEXT, {"model": "stub", "prompt": ["a"] * 9}, {}, 400, "prompt"),
        (TEXT, b"{", {"Content-Type": "application/json"}, 400, None),
        (TEXT, b"{}", {"Content-Type": "text/plain"}, 415, None),
        (TEXT, b"{}", {}, 415, None),
        (TEXT, {"model": "stub", "prompt": "x" * 30_000}, {}, 413, None),
    ],
)
def test_what_cannot_be_served_is_told_in_openais_shape(
    server: Server, path: str, body: Any, headers: dict[str, str], status: int, param: str | None
) -> None:
    if isinstance(body, bytes) and not headers:
        got, _, data = server.ask("POST", path, body, {"Content-Type": ""})
    else:
        got, _, data = server.ask("POST", path, body, headers)
    error = json.loads(data)["error"]
    assert (got, error["type"], error["param"]) == (status, "invalid_request_error", param)
    assert set(error) == {"message", "type", "param", "code"}


@settings(max_examples=60)
@given(body=chat_bodies() | text_bodies())
def test_any_body_is_answered_or_refused_and_never_a_fault(
    server: Server, body: dict[str, Any]
) -> None:
    path = CHAT if "messages" in body else TEXT
    status, _, data = server.ask("POST", path, body)
    if status == 200:
        assert data.endswith(b"data: [DONE]\n\n" if body.get("stream") else b"}")
    else:
        assert (status in (400, 404), bool(json.loads(data)["error"]["message"])) == (True, True)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(server: Server, stream: bool) -> None:
    running = "stageline_running "
    body = {"model": "stub", "prompt": "a", "max_tokens": LONG, "stream": stream}
    data = json.dumps(body).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection(server.address) as client:
        client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        wait_for(server, lambda: server.metric(running) == 1)
    wait_for(server, lambda: server.metric(running) == 0)


def test_a_stage_that_is_lost_for_good_ends_the_stream_with_an_error() -> None:
    body = {"model": "stub", "prompt": "a", "max_tokens": LONG, "stream": True}
    with served("--restarts", "0") as server, httpx.Client(base_url=server.url) as client:
        with client.stream("POST", TEXT, json=body, timeout=30) as reply:
            lines = reply.iter_lines()
            first = next(lines)
            os.kill(children(server)[-1], signal.SIGKILL)
            said = [first, *lines]
        said = [json.loads(line.removeprefix("data: ")) for line in said if line]
        assert (said[-1]["error"]["type"], said[-1]["error"]["code"]) == (
            "server_error",
            "stage_lost",
        )
        assert "killed by SIGKILL" in said[-1]["error"]["message"]
        reasons = {one["choices"][0]["finish_reason"] for one in said[:-1]}
        assert (reply.status_code, reasons) == (200, {None})


def children(server: Server) -> list[int]:
    pid = server.process.pid
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted(int(one) for task in tasks for one in (task / "children").read_text().split())


def wait_for(server: Server, is_so: Any, timeout_s: float = 20) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, server.stderr
