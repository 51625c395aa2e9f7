"""Two halves of SmolLM2 over HTTP, driven by curl, say what plain transformers says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracle import Answer, Oracle, Question
from tests.support.serving import Server
from tests.support.stage_http import (
    BINARY,
    JSON,
    TEXT,
    curl,
    ids,
    ids_text,
    layers,
    mask_text,
    starting_stage,
    wait_until_it_serves,
)

pytestmark = [pytest.mark.demo_model, pytest.mark.timeout(300)]

PROMPT = "The three primary colours are"
CHAT = [{"role": "user", "content": "Name a colour."}]
NEW_TOKENS = 6

Pair = tuple[Server, Server]


@pytest.fixture(scope="module")
def oracle(demo_model_path: Path) -> Iterator[Oracle]:
    """Plain transformers, computing beside the workers."""
    questions = [
        Question(prompt=PROMPT, max_new_tokens=NEW_TOKENS),
        Question(messages=CHAT, max_new_tokens=1),
    ]
    process = Oracle(demo_model_path, questions, 256)
    yield process
    process.close()


@pytest.fixture(scope="module")
def pair(demo_model_path: Path, oracle: Oracle) -> Iterator[Pair]:
    """The two halves."""
    model = ("--model-id", str(demo_model_path), "--threads", "1", "--device", "cpu")
    with starting_stage(*layers(0, 15), model=model) as first:
        with starting_stage(*layers(15, 30), model=model) as last:
            wait_until_it_serves(first)
            wait_until_it_serves(last)
            yield first, last


@pytest.fixture(scope="module")
def answer(oracle: Oracle) -> Answer:
    """What transformers says to `PROMPT`."""
    return oracle.answers()[0]


def step(pair: Pair, body: Any, kind: str = JSON, headers: dict[str, str] | None = None) -> Any:
    """Send a message through both halves; return what the last one says."""
    hidden = curl(f"{pair[0].url}/forward", body, headers, kind=kind)
    assert hidden.status == 200, hidden.message
    last = curl(f"{pair[1].url}/forward", hidden.body, hidden.onward, kind=BINARY)
    assert last.status == 200, last.message
    return last.json


def with_session(pair: Pair, name: str, body: Any, kind: str, **headers: str) -> list[int]:
    """Answer a message, then token by token."""
    named = {"X-Meshnet-Session": name}
    said = step(pair, body, kind, {**named, **headers})
    new = [said["token_id"]]
    while len(new) < NEW_TOKENS:
        position = {"X-Meshnet-Position": str(said["position"])}
        said = step(pair, {"tokens": new[-1:]}, headers={**named, **position})
        new.append(said["token_id"])
    return new


def without_session(pair: Pair, tokens: Sequence[int]) -> list[int]:
    """Answer with the whole sequence each time."""
    whole = list(tokens)
    while len(whole) < len(tokens) + NEW_TOKENS:
        whole.append(step(pair, {"tokens": whole})["token_id"])
    return whole[len(tokens) :]


def test_a_completion_by_curl_is_that_of_transformers(pair: Pair, answer: Answer) -> None:
    hidden = curl(f"{pair[0].url}/forward", PROMPT.encode(), kind=TEXT)
    tokens = ids(hidden.headers["x-meshnet-token-ids"])
    new = with_session(pair, "text", PROMPT.encode(), TEXT)
    text = curl(f"{pair[1].url}/detokenize", {"tokens": new}).json["text"]
    assert (tokens, new, without_session(pair, tokens), text) == (
        answer.prompt_tokens,
        answer.tokens,
        answer.tokens,
        answer.text,
    )


def test_padding_on_the_left_changes_no_token(pair: Pair, answer: Answer) -> None:
    prompt = answer.prompt_tokens
    mask = mask_text(0, 0, *[1] * len(prompt))
    positions = ids_text([0, 0, *range(len(prompt))])
    headers = {"X-Meshnet-Attn-Mask": mask, "X-Meshnet-Position-Ids": positions}
    new = with_session(pair, "padded", {"tokens": [0, 0, *prompt]}, JSON, **headers)
    assert new == answer.tokens


def test_messages_go_through_the_chat_template(pair: Pair, oracle: Oracle) -> None:
    tokens = curl(f"{pair[0].url}/tokenize", {"messages": CHAT}).json["tokens"]
    assert tokens == oracle.answers()[1].prompt_tokens


def test_a_message_that_does_not_follow_what_a_session_holds_is_a_conflict(pair: Pair) -> None:
    def refusal(name: str, position: int) -> tuple[int, str, str]:
        headers = {"X-Meshnet-Session": name, "X-Meshnet-Position": str(position)}
        told = curl(f"{pair[0].url}/forward", {"tokens": [1]}, headers)
        error = told.json["error"]
        return told.status, error["code"], error["param"]

    opened = {"X-Meshnet-Session": "gap"}
    curl(f"{pair[0].url}/forward", {"tokens": [1, 2]}, opened)
    too_far = refusal("gap", 3)
    released = curl(f"{pair[0].url}/sessions/gap", words=("-X", "DELETE")).json
    assert (too_far, released, refusal("gap", 2)) == (
        (409, "bad_position", "X-Meshnet-Position"),
        {"released": True},
        (409, "no_session", "X-Meshnet-Session"),
    )


@pytest.mark.parametrize(("stage", "path"), [(0, "forward"), (1, "detokenize")])
def test_ids_that_the_model_does_not_have_are_named(pair: Pair, stage: int, path: str) -> None:
    told = curl(f"{pair[stage].url}/{path}", {"tokens": [1, 10**9]})
    error = told.json["error"]
    seen = "token id 1000000000 at index 1 is outside the vocabulary" in error["message"]
    assert (told.status, error["param"], seen) == (400, "tokens", True), error
