"""Who may ask: keys, names of this machine, pages of other sites."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from orchestrator.serve.guard import Guard, Rules, is_local
from orchestrator.serve.keys import Keys, KeysError, read_keys
from orchestrator.serve.service import client_of

KEYED = Rules(keys=Keys(["first-key", "second-key"]), open_paths=frozenset({"/health"}))
LOCAL = Rules(local_names_only=True, origins=("https://ok.example",))


async def _name(request: Request) -> PlainTextResponse:
    return PlainTextResponse(client_of(request))


def ask(
    rules: Rules, path: str = "/v1", method: str = "GET", **headers: str
) -> tuple[int, str, Mapping[str, str]]:
    """Return status, body and headers of what an app behind the guard answers."""
    routes = [Route(one, _name, methods=["GET", "POST"]) for one in ("/v1", "/health")]
    app = Starlette(routes=routes, middleware=[Middleware(Guard, rules=rules)])
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("10.0.0.9", 1234),
        "state": {},
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    named = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], sent[1]["body"].decode(), named


def test_a_right_key_passes_and_names_its_client() -> None:
    got = [ask(KEYED, authorization=f"Bearer {key}")[:2] for key in ("first-key", "second-key")]
    assert got == [(200, "key 0"), (200, "key 1")]


@pytest.mark.parametrize("shown", ["Bearer wrong", "Bearer ", "Basic first-key", "Bearer é"])
def test_a_wrong_key_gets_401_in_the_shape_of_openai(shown: str) -> None:
    status, body, headers = ask(KEYED, authorization=shown)
    assert (status, '"code":"invalid_api_key"' in body, headers["www-authenticate"]) == (
        401,
        True,
        "Bearer",
    )


def test_without_a_key_only_open_paths_may_be_read() -> None:
    asked = [ask(KEYED, "/health"), ask(KEYED, "/health", "POST"), ask(KEYED, "/v1")]
    assert [one[0] for one in asked] == [200, 401, 401]


def test_without_keys_the_address_names_the_client() -> None:
    assert ask(Rules())[:2] == (200, "10.0.0.9")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("chat.localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("127.1.2.3", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1:8000", False),
        ("user@evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_only_names_of_loopback_are_local(host: str, local: bool) -> None:
    assert (is_local(host), ask(LOCAL, host=host)[0]) == (local, 200 if local else 421)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("https://ok.example", 200),
        ("http://localhost:9000", 403),
        ("https://evil.example", 403),
        ("null", 403),
    ],
)
def test_pages_of_other_sites_may_not_ask(origin: str, status: int) -> None:
    assert ask(LOCAL, host="localhost:8000", origin=origin)[0] == status


def test_a_file_has_one_key_a_line_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nkey-number-1\n\nkey-number-2  \nkey-number-1\n")
    file.chmod(0o600)
    said: list[str] = []
    assert (read_keys(file, "from-the-environment", said.append), said) == (
        ("key-number-1", "key-number-2"),
        [],
    )


def test_a_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("key-number-1\n")
    file.chmod(0o644)
    said: list[str] = []
    read_keys(file, "", said.append)
    assert said == [f"warning: others on this machine can read {file}; chmod 600 it"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# none\n", "--api-key-file {} holds no key; write one key a line into it"),
        (
            "good-key-1\nshort\n",
            (
                "--api-key-file {}: key 2 must be at least 8 printable ASCII characters without "
                "spaces; make one with: openssl rand -hex 32"
            ),
        ),
    ],
)
def test_a_file_without_good_keys_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(KeysError) as caught:
        read_keys(file, "", print)
    assert str(caught.value) == sentence.format(file)


def test_the_refusal_of_a_key_does_not_quote_it() -> None:
    with pytest.raises(KeysError) as caught:
        read_keys(None, "secret!", print)
    assert "secret!" not in str(caught.value)
