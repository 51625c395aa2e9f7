"""`orchestrator stage-http`: two stages driven by curl, and what each refuses; stub workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.recovery.policy import NO_RECOVERY
from orchestrator.stage_http.forward import Forward
from orchestrator.stage_http.headers import Given
from orchestrator.stage_http.one_stage import OneStage
from tests.support.cli import environment, run_cli, stub_answer, stub_tokens
from tests.support.serving import Server, started
from tests.support.stage_http import (
    BINARY,
    JSON,
    TEXT,
    curl,
    ids_text,
    layers,
    mask_text,
    served_stage,
)
from tests.support.stages import PATIENT, MemoryRecorder, stub_spec
from worker.protocol.exits import ExitCode

FIRST, LAST, WHOLE = layers(0, 64), layers(64, 128), layers(0, 128)
SHAPED = {"X-Meshnet-Shape": "1,2,16"}
HEADERS = ("Shape", "Dtype", "Attn-Mask", "Position-Ids", "Token-Ids", "Session", "Position")
ROWS = bytes(2 * 16 * 2)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    """A first and a last stage."""
    with served_stage(*FIRST, "--max-body-bytes", "4096", "--max-rows", "8") as first:
        with served_stage(*LAST) as last:
            yield first, last


def through(pair: tuple[Server, Server], body: Any, kind: str, **headers: str) -> Any:
    """Send a message through both stages; return what the last one says."""
    named = {f"X-Meshnet-{name.title()}": text for name, text in headers.items()}
    first = curl(f"{pair[0].url}/forward", body, named, kind=kind)
    assert first.status == 200, first.body
    last = curl(f"{pair[1].url}/forward", first.body, first.onward, kind=BINARY)
    assert last.status == 200, last.body
    return last.json


def test_two_stages_and_curl_give_what_the_stub_chapter_says(pair: tuple[Server, Server]) -> None:
    prompt = "two stages and a tail"
    said = through(pair, prompt.encode(), TEXT, session="a")
    new = [said["token_id"]]
    while len(new) < 4:
        step = {"tokens": [said["token_id"]]}
        said = through(pair, step, JSON, session="a", position=str(said["position"]))
        new.append(said["token_id"])
    released = [curl(f"{one.url}/sessions/a", words=("-X", "DELETE")).status for one in pair]
    assert (new, released) == (stub_answer(prompt, 2, 4), [200, 200])


def test_the_reply_of_a_first_stage_says_all_that_the_next_one_is_to_be_told(
    pair: tuple[Server, Server],
) -> None:
    reply = curl(f"{pair[0].url}/forward", b"one two", {"X-Meshnet-Session": "told"}, kind=TEXT)
    assert (reply.onward, len(reply.body), reply.headers["content-type"]) == (
        {
            "x-meshnet-shape": "1,2,16",
            "x-meshnet-dtype": "bfloat16",
            "x-meshnet-attn-mask": mask_text(1, 1),
            "x-meshnet-position-ids": ids_text([0, 1]),
            "x-meshnet-token-ids": ids_text(stub_tokens("one two")),
            "x-meshnet-session": "told",
            "x-meshnet-position": "0",
        },
        len(ROWS),
        BINARY,
    )


def test_the_same_message_gives_the_same_token_with_a_session_and_without(
    pair: tuple[Server, Server],
) -> None:
    tokens = {"tokens": [5, 6, 7]}
    assert through(pair, tokens, JSON) == through(pair, tokens, JSON, session="same")


def test_one_stage_may_be_the_whole_model() -> None:
    with served_stage(*WHOLE) as whole:
        said = curl(f"{whole.url}/forward", {"prompt": "all in one"}).json
        told = curl(f"{whole.url}/tokenize", b"all in one", kind=TEXT).json
        text = curl(f"{whole.url}/detokenize", {"tokens": [3, 4]}).json
    assert (said["position"], said["text"], told, text) == (
        3,
        str(said["token_id"]),
        {"tokens": stub_tokens("all in one")},
        {"text": "3 4"},
    )


def test_as_many_rows_as_are_taken_may_have_every_header(pair: tuple[Server, Server]) -> None:
    rows = 2048
    headers = {
        "X-Meshnet-Shape": f"1,{rows},16",
        "X-Meshnet-Attn-Mask": mask_text(*[1] * rows),
        "X-Meshnet-Position-Ids": ids_text(range(rows)),
        "X-Meshnet-Token-Ids": ids_text([7] * rows),
        "Content-Type": BINARY,
    }
    status, _, body = pair[1].ask("POST", "/forward", bytes(rows * 32), headers)
    assert (status, json.loads(body)["position"]) == (200, rows)


# Which stage, path, body, its type, headers -> status, what the sentence says.
REFUSED: list[tuple[int, str, Any, str, dict[str, str], int, str]] = [
    (0, "/forward", b"x", BINARY, {}, 415, "is application/octet-stream, this stage takes text"),
    (0, "/forward", b"a=b", "application/x-www-form-urlencoded", {}, 415, "Content-Type is appl"),
    (0, "/forward", b"\xff", TEXT, {}, 400, "no UTF-8"),
    (0, "/forward", b"{", JSON, {}, 400, "no JSON"),
    (0, "/forward", [1], JSON, {}, 400, "it must be a JSON object"),
    (0, "/forward", {}, JSON, {}, 400, "none of prompt, messages, tokens: give one"),
    (0, "/forward", {"prompt": "a", "tokens": [1]}, JSON, {}, 400, "prompt and tokens of"),
    (0, "/forward", {"prompt": 1}, JSON, {}, 400, "'prompt' is 1, it needs to be a string"),
    (0, "/forward", {"prompt": "a", "top_k": 1}, JSON, {}, 400, "'top_k' is not known here"),
    (0, "/forward", {"tokens": [1, -1]}, JSON, {}, 400, "'tokens' has -1 at 1"),
    (0, "/forward", {"tokens": []}, JSON, {}, 400, "'tokens' is []"),
    (0, "/forward", {"messages": [{"role": "user"}]}, JSON, {}, 400, "the prompt has no tokens"),
    (0, "/forward", {"tokens": [1] * 9}, JSON, {}, 400, "9 rows, at most 8 are taken at once"),
    (0, "/forward", b"a" * 4097, TEXT, {}, 413, "4097 bytes, at most 4096 are read"),
    (0, "/forward", b"a", TEXT, SHAPED, 400, "a prompt has none"),
    (0, "/forward", b"a", TEXT, {"X-Meshnet-Position": "3"}, 400, "is 3 without a X-Meshnet-Ses"),
    (
        0,
        "/forward",
        b"a",
        TEXT,
        {"X-Meshnet-Position": "3", "X-Meshnet-Session": "s"},
        400,
        "a text stands at 0",
    ),
    (0, "/forward", b"a", TEXT, {"X-Meshnet-Session": "../etc"}, 400, "is '../etc', it needs"),
    (0, "/detokenize", {"tokens": [1]}, JSON, {}, 400, "served by the last stage; this one holds"),
    (
        1,
        "/tokenize",
        b"a",
        TEXT,
        {},
        400,
        "served by the first stage; this one holds layers 64:128",
    ),
    (1, "/forward", b"a", TEXT, {}, 415, "a prompt goes to the stage that begins with layer 0"),
    (1, "/forward", ROWS, BINARY, {}, 400, "X-Meshnet-Shape is missing, it needs to be 1,rows,16"),
    (1, "/forward", ROWS, BINARY, {"X-Meshnet-Shape": "2,16"}, 400, "is '2,16', it needs 1,rows"),
    (1, "/forward", ROWS, BINARY, {"X-Meshnet-Shape": "2,1,16"}, 400, "needs to begin with 1"),
    (1, "/forward", ROWS, BINARY, {"X-Meshnet-Shape": "1,2,32"}, 400, "this stage takes 1,rows,16"),
    (
        1,
        "/forward",
        ROWS[:-1],
        BINARY,
        SHAPED,
        400,
        "63 bytes, X-Meshnet-Shape 1,2,16 of bfloat16 n",
    ),
    (1, "/forward", ROWS, BINARY, {**SHAPED, "X-Meshnet-Dtype": "float16"}, 400, "is 'float16'"),
    (1, "/forward", ROWS, BINARY, {**SHAPED, "X-Meshnet-Dtype": "float32"}, 400, "takes bfloat16"),
    (
        1,
        "/forward",
        ROWS,
        BINARY,
        {**SHAPED, "X-Meshnet-Attn-Mask": mask_text(1)},
        400,
        "X-Meshnet-Attn-Mask holds 1 bytes, it needs one for each of the 2 rows",
    ),
    (
        1,
        "/forward",
        ROWS,
        BINARY,
        {**SHAPED, "X-Meshnet-Attn-Mask": mask_text(0, 1)},
        400,
        "this stage takes no padding",
    ),
    (
        1,
        "/forward",
        ROWS,
        BINARY,
        {**SHAPED, "X-Meshnet-Position-Ids": ids_text([0, 2])},
        400,
        "has 2 at row 1, this stage computes with 1 there",
    ),
    (
        1,
        "/forward",
        ROWS,
        BINARY,
        {**SHAPED, "X-Meshnet-Token-Ids": ids_text([0])},
        400,
        "holds 1 ids, it needs one for each of 2 rows",
    ),
    (1, "/nothing", None, JSON, {}, 404, "'/nothing' is not served; there are /forward,"),
    (1, "/v1/forward", b"a", TEXT, {}, 404, "did you mean /forward?"),
    (0, "/forward", b"a", TEXT, {"X-Meshnet-Sesion": "a"}, 400, "did you mean X-Meshnet-Session?"),
    (0, "/forward", b"a", TEXT, {"X-Meshnet-Foo": "a"}, 400, "foo is not known here; known are X"),
    (0, "/forward", {"promt": "a"}, JSON, {}, 400, "did you mean 'prompt'?"),
    (0, "/forward", {"messages": []}, JSON, {}, 400, "'messages' is [], it needs to be an array"),
    (0, "/forward", {"prompt": ""}, JSON, {}, 400, "the prompt has no tokens"),
    (1, "/forward", None, JSON, {}, 405, "GET is not served at '/forward'; use POST"),
    (1, "/health", None, JSON, {"Host": "evil.example"}, 421, "host 'evil.example'"),
    (1, "/health", None, JSON, {"Origin": "http://evil.example"}, 403, "http://evil.example"),
]


@pytest.mark.parametrize(
    ("stage", "path", "body", "kind", "headers", "status", "sentence"),
    REFUSED,
    ids=[str(i) for i in range(len(REFUSED))],
)
def test_what_cannot_be_served_is_told_in_one_sentence(
    pair: tuple[Server, Server],
    stage: int,
    path: str,
    body: Any,
    kind: str,
    headers: dict[str, str],
    status: int,
    sentence: str,
) -> None:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    sent = {**headers} if body is None else {**headers, "Content-Type": kind}
    method = "GET" if body is None else "POST"
    seen, _, told = pair[stage].ask(method, path, data, sent)
    message = json.loads(told)["error"]["message"]
    assert (seen, sentence in message) == (status, True), message


def test_the_description_has_what_a_client_must_know(pair: tuple[Server, Server]) -> None:
    told = curl(f"{pair[1].url}/stage").json
    assert {name: told[name] for name in ("layers", "num_layers", "roles", "hidden_dim")} == {
        "layers": [64, 128],
        "num_layers": 128,
        "roles": ["last"],
        "hidden_dim": 16,
    }


def test_beyond_loopback_a_key_is_needed_and_asked_for(tmp_path: Path) -> None:
    refused = run_cli("stage-http", "--stub", *FIRST, "--host", "0.0.0.0", "--port", "0")
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("correct-horse\n")
    with served_stage(*FIRST, "--host", "0.0.0.0", "--api-key-file", str(file)) as server:
        key = {"Authorization": "Bearer correct-horse"}
        asked = [
            curl(f"{server.url}/forward", b"a", kind=TEXT).status,
            curl(f"{server.url}/stage").status,
            curl(f"{server.url}/health").status,
            curl(f"{server.url}/forward", b"a", key, kind=TEXT).status,
        ]
    assert (refused.returncode, "no API key is set" in refused.stderr, asked) == (
        ExitCode.USAGE,
        True,
        [401, 401, 200, 200],
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (layers(4, 4), "layers 4:4 are no range"),
        (layers(0, 129), "layers 0:129 are not a non-empty range within 0:128"),
    ],
)
def test_layers_that_cannot_be_end_the_command(words: tuple[str, ...], sentence: str) -> None:
    done = run_cli("stage-http", "--stub", *words, "--port", "0")
    assert (done.returncode, sentence in done.stderr) == (ExitCode.USAGE, True), done.stderr


def test_a_taken_port_is_told_before_a_worker_is_started(pair: tuple[Server, Server]) -> None:
    done = run_cli("stage-http", "--stub", *FIRST, "--port", str(pair[0].address[1]))
    told = "is taken by another program" in done.stderr, "connecting" in done.stderr
    assert (done.returncode, told) == (ExitCode.USAGE, (True, False))


def worker_of(server: Server) -> int:
    """Return the pid of the one worker that a server has."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    (pid,) = map(int, children.split())
    return pid


def test_a_worker_that_is_killed_is_started_again_and_the_next_request_is_answered() -> None:
    with served_stage(*FIRST) as server:
        before = curl(f"{server.url}/forward", b"still here", kind=TEXT)
        os.kill(worker_of(server), signal.SIGKILL)
        server.wait_for("note: .*SIGKILL")
        after = curl(f"{server.url}/forward", b"still here", kind=TEXT)
    assert (after.status, after.body) == (200, before.body)


def test_a_worker_that_is_lost_for_good_ends_the_command_with_its_sentence() -> None:
    with served_stage(*FIRST, "--restarts", "0") as server:
        os.kill(worker_of(server), signal.SIGKILL)
        exit_code = server.wait()
        server.wait_for("error: stage 0 on local .*SIGKILL")
    assert exit_code == ExitCode.PEER_GONE


def held_place(server: Server) -> socket.socket:
    """Return a connection whose request has a place and whose body, 5 bytes, is awaited."""
    connection = socket.create_connection(server.address, timeout=30)
    connection.sendall(
        b"POST /forward HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        b"Content-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    assert connection.recv(1024).startswith(b"HTTP/1.1 100")
    return connection


def whole_reply(connection: socket.socket) -> bytes:
    """Return everything up to the end of the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_places_are_bounded_and_a_drain_waits_for_those_that_are_taken() -> None:
    with served_stage(*FIRST, "--max-concurrent", "1", "--max-queue", "0") as server:
        with held_place(server) as connection:
            busy = curl(f"{server.url}/forward", b"a", kind=TEXT)
            server.signal(signal.SIGTERM)
            server.wait_for("^SIGTERM: ending once the 1 request under way is answered")
            draining = curl(f"{server.url}/forward", b"a", kind=TEXT)
            health = curl(f"{server.url}/health")
            connection.sendall(b"hello")
            reply = whole_reply(connection)
        exit_code = server.wait()
    assert [
        (busy.status, int(busy.headers["retry-after"]) > 0),
        (draining.status, "retry-after" in draining.headers),
        (health.status, health.json),
        reply.split(b"\r\n")[0],
        exit_code,
    ] == [
        (429, True),
        (503, True),
        (503, {"status": "draining"}),
        b"HTTP/1.1 200 OK",
        128 + signal.SIGTERM,
    ]


def test_a_body_that_does_not_come_gives_its_place_up() -> None:
    with served_stage(*FIRST, "--receive-timeout-s", "0.3") as server:
        with held_place(server) as connection:
            assert whole_reply(connection).startswith(b"HTTP/1.1 408")


def test_a_signal_while_nothing_is_under_way_waits_for_nothing() -> None:
    with served_stage(*FIRST) as server:
        server.signal(signal.SIGTERM)
        assert (server.wait(), "under way" in server.stderr) == (128 + signal.SIGTERM, False)


def test_a_signal_while_the_worker_starts_ends_both() -> None:
    words = ("--stub", *FIRST, "--port", "0")
    with started(*words, command="stage-http", env=environment()) as server:
        server.wait_for("connecting")
        server.signal(signal.SIGINT)
        assert server.wait() == 128 + signal.SIGINT


def test_a_page_of_an_allowed_origin_may_read_the_headers() -> None:
    with served_stage(*FIRST, "--allow-origin", "https://good.example") as server:
        reply = curl(f"{server.url}/forward", b"a", {"Origin": "https://good.example"}, kind=TEXT)
    exposed = reply.headers["access-control-expose-headers"].split(", ")
    assert (reply.headers["access-control-allow-origin"], exposed) == (
        "https://good.example",
        [f"X-Meshnet-{name}" for name in HEADERS],
    )


@pytest.mark.parametrize(
    ("given", "ops"),
    [
        (Given(), ["embed_and_forward", "release", "shutdown"]),
        (Given(session="kept"), ["embed_and_forward", "shutdown"]),
    ],
)
def test_a_message_without_a_session_leaves_no_cache_behind(given: Given, ops: list[str]) -> None:
    recorder = MemoryRecorder()

    async def ask() -> None:
        stage = OneStage(
            stub_spec(layers=(0, 64)),
            timeouts=PATIENT,
            policy=NO_RECOVERY,
            on_status=lambda status: None,
            on_notice=lambda text: None,
            recorder=recorder,
        )
        try:
            await stage.open()
            await Forward(stage, most_rows=8, most_sessions=1).answer(
                given, JSON, b'{"tokens":[1]}'
            )
            await stage.freed()
        finally:
            await stage.aclose()

    asyncio.run(ask())
    assert [op.op for op in recorder.ops] == ops
