"""The official `openai` client of npm: what it returns is what the stages compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import stub_answer
from tests.support.real_clients import ask_by_node, installed_npm_client, words
from tests.support.serving import Server, served

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

USER = [{"role": "user", "content": "a b c"}]
ANSWER = stub_answer("a b c", 2, 6)
LONG = 100_000
USAGE = {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_npm_client(tmp_path_factory.mktemp("npm"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as running:
        yield running


def test_a_chat_streamed_or_not_and_what_is_refused(server: Server, script: Path) -> None:
    chat = {"messages": USER, "max_tokens": 6}
    streamed, whole, no_model, no_field, models = ask_by_node(
        script,
        server.url,
        server.model,
        ("streamed", chat),
        ("whole", chat),
        ("refused", {**chat, "model": "gpt-5"}),
        ("refused", {**chat, "foo": 1}),
        ("models", {}),
    )
    for reply in (streamed, whole):
        counts = {name: reply["usage"][name] for name in USAGE}
        told = (reply["text"], reply["finish_reason"], counts)
        assert told == (words(ANSWER), "length", USAGE)
    kind = {"type": "invalid_request_error"}
    missing = {"name": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"}
    unknown = {"name": "BadRequestError", "status": 400, "param": "foo"}
    assert (no_model, no_field) == (
        {**missing, **kind},
        {**unknown, **kind, "code": "unknown_parameter"},
    )
    assert models == ["stub"]


def test_a_stream_that_is_broken_off_ends_the_work(server: Server, script: Path) -> None:
    chat = {"messages": USER, "max_tokens": LONG}
    (first,) = ask_by_node(script, server.url, server.model, ("begun", chat))
    assert first == str(ANSWER[0])
    server.wait_until(lambda: server.metric("stageline_running ") == 0)
