"""What clients that go away leave on the stages, where caches of answers are kept: nothing."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path

from tests.support.serve_load import caches_held, loaded_server
from tests.support.serving import Server

PROMPT = "x" * 600  # of whole chunks, which another prompt that begins so may take over


def ask(server: Server, prompt: str) -> int:
    """Have a prompt answered; return how much of it the stages held."""
    body = {"model": "stub", "prompt": prompt, "max_tokens": 4, "temperature": 0}
    usage = json.loads(server.ask("POST", "/v1/completions", body)[2])["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def begin(server: Server, prompt: str) -> HTTPConnection:
    """Ask for a long answer and read the beginning of it."""
    connection = HTTPConnection(*server.address, timeout=30)
    body = {"model": "stub", "prompt": prompt, "max_tokens": 2800, "stream": True}
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    assert connection.getresponse().readline().startswith(b"data: ")
    return connection


def until_idle(server: Server) -> None:
    server.wait_until(lambda: server.metric("stageline_running ") == 0)


def test_the_caches_of_answers_that_nobody_waits_for_are_freed(tmp_path: Path) -> None:
    with loaded_server(tmp_path, "turns") as server:
        with ExitStack() as clients:
            for number in range(8):
                clients.enter_context(closing(begin(server, f"{number}{PROMPT}")))
            server.wait_until(lambda: caches_held(server, tmp_path) == [8, 8])
        until_idle(server)
        assert caches_held(server, tmp_path) == [0, 0]


def test_what_was_kept_before_a_client_that_went_away_is_kept_after_it(tmp_path: Path) -> None:
    with loaded_server(tmp_path, "turns") as server:
        assert [ask(server, PROMPT), ask(server, PROMPT)] == [0, 512]
        begin(server, PROMPT + "y" * 600).close()
        until_idle(server)
        assert caches_held(server, tmp_path) == [1, 1]
        # Of what that client's prompt had beyond, nothing.
        assert ask(server, PROMPT + "y" * 600) == 512
