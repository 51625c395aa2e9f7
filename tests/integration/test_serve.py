"""`orchestrator serve` around its endpoints: who gets in, what is bounded, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run_cli
from tests.support.serving import STUB, Server, served, started

TEXT = "/v1/completions"
ENDLESS = {"model": "stub", "prompt": "a b c", "max_tokens": 1_000_000, "stream": True}
KEY = "a-key-for-this-test"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    bounds = "--max-concurrent 1 --max-queue 0 --receive-timeout-s 1 --send-timeout-s 1"
    with served(*bounds.split(), "--max-connections", "20", "--access-log") as running:
        yield running


@contextlib.contextmanager
def asked(server: Server, body: Any, receive_bytes: int = 0) -> Iterator[socket.socket]:
    """Ask, and read nothing but the beginning of the answer."""
    data = json.dumps(body).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.socket() as client:
        client.settimeout(30)
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.connect(server.address)
        client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        assert client.recv(12) == b"HTTP/1.1 200"
        yield client


def rest_of(client: socket.socket) -> str:
    """Read up to the end of the connection."""
    read = b""
    while data := client.recv(1 << 16):
        read += data
    return read.decode()


def refused(client: socket.socket) -> tuple[str, str]:
    """Return the status line of a refusal and what its body says."""
    head, _, body = rest_of(client).partition("\r\n\r\n")
    return head.partition("\r\n")[0], json.loads(body)["error"]["message"]


def answer(server: Server, tokens: int) -> tuple[int, dict[str, str], bytes]:
    return server.ask("POST", TEXT, {"model": "stub", "prompt": "a b c", "max_tokens": tokens})


def test_health_asks_every_stage(server: Server) -> None:
    rest = {"host": "local", "device": "cpu", "state": "ready", "trouble": None}
    assert server.get_json("/health") == {
        "status": "ok",
        "message": "all 2 stages answer",
        "stages": [
            {"stage": 0, "layers": [0, 64], **rest},
            {"stage": 1, "layers": [64, 128], **rest},
        ],
    }


def test_metrics_count_what_was_answered(server: Server) -> None:
    names = (
        "stageline_prompt_tokens_total",
        "stageline_generated_tokens_total",
        'stageline_answers_total{finish_reason="length"}',
        "stageline_ttft_seconds_count",
        "stageline_inter_token_seconds_count",
        "stageline_queue_seconds_count",
        'stageline_http_requests_total{route="/v1/completions",status="200"}',
    )
    before = [server.metric(name) for name in names]
    assert answer(server, 5)[0] == 200
    more = [server.metric(name) - was for name, was in zip(names, before, strict=True)]
    assert more == [3, 5, 1, 1, 4, 1, 1]


def test_metrics_tell_of_every_stage(server: Server) -> None:
    answer(server, 5)
    names = ("busy_seconds_total", "sent_bytes_total", "received_bytes_total", "ops_total")
    text = server.ask("GET", "/metrics")[2].decode()
    found = re.findall(r'^stageline_stage_(\w+)\{.*stage="(\d)"\} (\S+)$', text, re.MULTILINE)
    working = {(name, stage) for name, stage, value in found if name in names and float(value)}
    shares = [float(value) for name, _, value in found if name == "busy_share"]
    assert working == {(name, stage) for name in names for stage in "01"}
    assert [0 < share <= 1 for share in shares] == [True, True]


def test_one_more_than_fits_is_sent_away_and_told_when_to_come(server: Server) -> None:
    with asked(server, ENDLESS):
        status, headers, data = answer(server, 1)
    said = json.loads(data)["error"]
    assert (status, said["code"], int(headers["retry-after"]) >= 1) == (
        429,
        "rate_limit_exceeded",
        True,
    )
    server.wait_until(lambda: server.metric("stageline_running ") == 0)


@pytest.mark.parametrize("sent", [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nHost: l"])
def test_a_head_that_does_not_come_is_not_waited_for(server: Server, sent: bytes) -> None:
    with server.connect(timeout_s=10) as client:
        client.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""


def test_a_second_head_that_does_not_come_is_not_waited_for_either(server: Server) -> None:
    with server.connect(timeout_s=10) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/mod")
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1000):
                pass


@pytest.mark.parametrize(
    ("num_bytes", "end"),
    [(33 * 1024, b""), (33 * 1024, b"\r\n\r\n"), (200 * 1024, b""), (2**20, b"\r\n\r\n")],
)
def test_a_head_that_is_too_large_is_told_so_however_it_comes(
    server: Server, num_bytes: int, end: bytes
) -> None:
    with server.connect(timeout_s=10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nMany: " + b"x" * num_bytes + end)
        assert refused(client) == (
            "HTTP/1.1 431 Request Header Fields Too Large",
            "the request's head has more than 32768 bytes; send fewer or shorter headers",
        )


@pytest.mark.parametrize(("num_lines", "status"), [(250, "200 OK"), (4000, "431 Request He")])
def test_a_head_of_very_many_lines_is_refused_too(
    server: Server, num_lines: int, status: str
) -> None:
    head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    with server.connect(timeout_s=10) as client:
        client.sendall(head + b"a:b\r\n" * num_lines + b"\r\n")
        assert rest_of(client).startswith(f"HTTP/1.1 {status}")


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"hello\r\n\r\n", "illegal request line: bytearray(b'hello')"),
        (b"\x16\x03\x01\r\n", "illegal request line"),
        (b"GET / HTTP/1.1\r\n\r\n", "Missing mandatory Host: header"),
    ],
)
def test_what_is_no_http_is_told_in_openais_shape(server: Server, sent: bytes, why: str) -> None:
    with server.connect(timeout_s=10) as client:
        client.sendall(sent)
        assert refused(client) == (
            "HTTP/1.1 400 Bad Request",
            f"the request is no HTTP that can be read here: {why}; send HTTP/1.1",
        )


@pytest.mark.parametrize(("size", "read"), [(1, 4129), (64, 8193)])
def test_a_body_of_tiny_chunks_is_refused_before_others_wait_for_it(
    server: Server, size: int, read: int
) -> None:
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with server.connect(timeout_s=10) as client:
        client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        client.sendall(b"%x\r\n%b\r\n" % (size, b" " * size) * 100_000)
        assert refused(client) == (
            "HTTP/1.1 400 Bad Request",
            (
                f"the first {read} chunks of the body have {read * size} bytes together; send "
                "chunks of 128 bytes or more, or a Content-Length"
            ),
        )


@pytest.mark.parametrize("size", [1, 128])
def test_a_body_of_some_small_chunks_or_many_of_middle_size_is_read(
    server: Server, size: int
) -> None:
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = json.dumps({"model": "stub", "prompt": "hi", "max_tokens": 1}).encode()
    body = body.ljust(4000 if size == 1 else 5000 * size)
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    with server.connect(timeout_s=10) as client:
        client.sendall(f"{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())
        client.sendall(b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks))
        client.sendall(b"0\r\n\r\n")
        assert rest_of(client).startswith("HTTP/1.1 200")


@pytest.mark.parametrize(
    ("target", "status"),
    [("http://localhost/v1/models?a=b", 200), ("HTTP://localhost", 200), ("http://evil/", 421)],
)
def test_a_target_with_a_host_is_answered_for_that_host(
    server: Server, target: str, status: int
) -> None:
    assert server.ask("GET", target, headers={"Host": "localhost"})[0] == status


def test_a_body_that_does_not_come_is_told_so(server: Server) -> None:
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with server.connect(timeout_s=10) as client:
        client.sendall(f'{head}Content-Length: 99\r\n\r\n{{"model"'.encode())
        said = rest_of(client)
    assert (said[:12], '"code":"request_timeout"' in said) == ("HTTP/1.1 408", True)


def test_a_client_that_does_not_read_is_cut_and_its_work_ends(server: Server) -> None:
    with asked(server, {**ENDLESS, "logprobs": 20}, receive_bytes=4096):
        server.wait_until(lambda: server.metric("stageline_running ") == 0)


def test_too_many_connections_are_refused(server: Server) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(20):
            held.enter_context(server.connect())
        assert server.ask("GET", "/health")[0] == 503
    server.wait_until(lambda: server.ask("GET", "/health")[0] == 200)


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        (
            "GET",
            "/v1/nothing",
            404,
            (
                "'/v1/nothing' is not served; there are /v1/models, /v1/chat/completions, "
                "/v1/completions, /, /stageline/status, /metrics, /health"
            ),
        ),
        (
            "POST",
            "/v1/embeddings",
            404,
            (
                "'/v1/embeddings' is not served; there are /v1/models, /v1/chat/completions, "
                "/v1/completions, /, /stageline/status, /metrics, /health"
            ),
        ),
        (
            "POST",
            "/v1/responses",
            404,
            "'/v1/responses' is not served; use /v1/chat/completions",
        ),
        (
            "POST",
            "/chat/completions",
            404,
            "'/chat/completions' is not served; did you mean /v1/chat/completions?",
        ),
        (
            "POST",
            "/v1/v1/completions",
            404,
            "'/v1/v1/completions' is not served; did you mean /v1/completions?",
        ),
        ("PUT", "/health", 405, "PUT is not served at '/health'; use GET, HEAD"),
    ],
)
def test_what_is_not_there_is_told_in_openais_shape(
    server: Server, method: str, path: str, status: int, message: str
) -> None:
    got = server.ask(method, path)
    assert (got[0], json.loads(got[2])["error"]["message"]) == (
        status,
        message,
    )


def test_the_access_log_has_no_query_no_key_and_no_text(server: Server) -> None:
    server.ask("GET", "/health?secret=query", headers={"Authorization": "Bearer secret-key"})
    server.ask("POST", TEXT, {"model": "stub", "prompt": "secret text", "max_tokens": 1})
    server.wait_for(rf"127\.0\.0\.1 POST '{TEXT}' 200 \d+ ms")
    server.wait_for(r"127\.0\.0\.1 GET '/health' 200 \d+ ms")
    assert "secret" not in server.stderr


def test_a_page_of_another_site_gets_nothing(server: Server) -> None:
    headers = ({"Origin": "https://evil.example"}, {"Host": "evil.example"})
    assert [server.ask("GET", "/v1/models", headers=one)[0] for one in headers] == [403, 421]


def test_a_port_that_is_taken_is_told_before_any_stage_is_started(server: Server) -> None:
    port = str(server.address[1])
    ended = run_cli("serve", *STUB, "--port", port)
    assert (ended.returncode, ended.stderr) == (
        2,
        (
            f"error: port {port} of 127.0.0.1 is taken by another program; choose another with "
            "--port, or 0 for a free one\n"
        ),
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--host", "0.0.0.0"),
            (
                "--host 0.0.0.0 is reachable from other machines and no API key is set; set "
                "STAGELINE_API_KEY or give --api-key-file, or --no-api-key-because with the reason"
            ),
        ),
        (
            ("--host", "192.0.2.1"),
            "--host 192.0.2.1 is no address of this machine; give one, as 127.0.0.1 or 0.0.0.0",
        ),
        (
            ("--api-key-file", "/nothing/here"),
            (
                "--api-key-file /nothing/here cannot be read: No such file or directory; name a "
                "file with one key a line"
            ),
        ),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_sentence(
    words: Sequence[str], sentence: str
) -> None:
    ended = run_cli("serve", *STUB, "--port", "0", *words)
    assert (ended.returncode, ended.stderr) == (2, f"error: {sentence}\n")


def test_beyond_loopback_everything_but_health_and_the_page_needs_the_key(tmp_path: Path) -> None:
    words = ("--host", "0.0.0.0", "--bundle-dir", str(tmp_path))
    stages = ("--local", "1", "--stub")
    with served(*words, stages=stages, env={"STAGELINE_API_KEY": KEY}) as server:
        paths = ("/v1/models", "/metrics", "/stageline/status", "/nothing", "/health", "/")
        right = {"Authorization": f"Bearer {KEY}"}
        without = [server.ask("GET", path)[0] for path in paths]
        with_key = [server.ask("GET", path, headers=right)[0] for path in paths]
        health = server.get_json("/health")
    assert (without, with_key, health) == (
        [401, 401, 401, 401, 200, 200],
        [200, 200, 200, 404, 200, 200],
        {"status": "ok"},
    )
    texts = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert texts
    assert not [text for text in texts if KEY in text]


def test_the_reason_for_no_key_is_told() -> None:
    words = ("--host", "0.0.0.0", "--no-api-key-because", "this is a test")
    with served(*words, stages=("--local", "1", "--stub", "--no-bundle")) as server:
        server.wait_for(r"^warning: everybody who reaches port \d+ of 0\.0\.0\.0 may use this")
        server.wait_for(
            r"^serving stub at http://127\.0\.0\.1:\d+ \(all addresses of this machine; 1 stage "
        )
        assert server.ask("GET", "/v1/models")[0] == 200


def test_sigterm_lets_answers_end_and_takes_no_more() -> None:
    body = {**ENDLESS, "max_tokens": 1500}
    with served("--drain-s", "60") as server, asked(server, body) as client:
        pids = server.worker_pids
        server.signal()
        server.wait_for("^SIGTERM: 1 under way may take 60 s more")
        health = server.ask("GET", "/health")
        refused = answer(server, 1)
        said = rest_of(client)
        assert (health[0], json.loads(health[2])["status"]) == (503, "draining")
        assert (refused[0], "retry-after" in refused[1]) == (503, True)
        assert said.endswith("data: [DONE]\n\n\r\n0\r\n\r\n")
        assert (server.wait(), alive(pids)) == (128 + signal.SIGTERM, [])


def test_answers_that_take_too_long_end_with_an_error() -> None:
    with served("--drain-s", "0.2") as server, asked(server, ENDLESS) as client:
        pids = server.worker_pids
        server.signal()
        said = rest_of(client)
        assert ('"code":"server_shutting_down"' in said.replace(" ", ""), "[DONE]" in said) == (
            True,
            False,
        )
        assert (server.wait(), alive(pids)) == (128 + signal.SIGTERM, [])


def test_a_second_signal_ends_all_at_once() -> None:
    with served("--drain-s", "600") as server, asked(server, ENDLESS):
        pids = server.worker_pids
        server.signal(signal.SIGINT)
        server.wait_for("^SIGINT: ")
        server.signal(signal.SIGINT)
        assert (server.wait(), alive(pids)) == (128 + signal.SIGINT, [])


def test_the_first_signal_alone_tells_how_the_server_ended() -> None:
    with served("--drain-s", "600") as server, asked(server, ENDLESS):
        pids = server.worker_pids
        server.signal()
        server.wait_for("^SIGTERM: ")
        deadline_s = time.monotonic() + 30
        # Up to its very end: also the interpreter's own end hears them.
        while server.process.poll() is None and time.monotonic() < deadline_s:
            server.signal(signal.SIGINT)
        assert (server.wait(), alive(pids)) == (128 + signal.SIGTERM, [])


def test_a_signal_while_the_stages_start_ends_them() -> None:
    hosts = ("--local", "2", "--stub", "--no-bundle", "--port", "0")
    with started(*hosts) as server:
        server.wait_for("connecting")
        server.signal()
        assert server.wait() == 128 + signal.SIGTERM


def test_a_stage_that_comes_back_is_healthy_again_and_counted() -> None:
    with served() as server:
        os.kill(server.worker_pids[1], signal.SIGKILL)
        server.wait_for("^note: stage 1 on local serves again")
        server.wait_until(lambda: server.get_json("/health")["status"] == "ok")
        assert answer(server, 3)[0] == 200
        assert (
            server.metric('stageline_stage_restarts_total{host="local",ok="true",stage="1"}'),
            server.metric('stageline_stage_failures_total{host="local",kind="crashed",stage="1"}'),
        ) == (1, 1)


def test_a_server_that_cannot_answer_any_more_ends() -> None:
    with served("--restarts", "0") as server:
        pids = server.worker_pids
        os.kill(pids[1], signal.SIGKILL)
        assert (server.wait(), alive(pids)) == (5, [])
        assert server.lines[-1].startswith("error: stage 1 on local was killed by SIGKILL")


def alive(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]
