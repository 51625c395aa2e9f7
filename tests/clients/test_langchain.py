"""LangChain's ChatOpenAI: what it returns is what the stages compute."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cli import stub_answer
from tests.support.real_clients import client_package, words
from tests.support.serving import Server, served

openai = client_package("openai")
langchain_openai = client_package("langchain_openai")

pytestmark = pytest.mark.clients

ANSWER = stub_answer("a b c", 2, 6)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as running:
        yield running


@pytest.fixture
def chat(server: Server) -> Iterator[Any]:
    # Clients of our own, as its own keep their connections as long as the process lives.
    with openai.DefaultHttpxClient() as http:
        yield langchain_openai.ChatOpenAI(
            base_url=f"{server.url}/v1", api_key="unused", model="stub", http_client=http
        )


def test_invoke(chat: Any) -> None:
    reply = chat.invoke("a b c", max_tokens=6)
    counts = {name: reply.usage_metadata[f"{name}_tokens"] for name in ("input", "output", "total")}
    assert (reply.content, counts) == (words(ANSWER), {"input": 3, "output": 6, "total": 9})
    assert reply.response_metadata["finish_reason"] == "length"


def test_stream(chat: Any) -> None:
    pieces = [piece.content for piece in chat.stream("a b c", max_tokens=6)]
    assert ("".join(pieces), len([piece for piece in pieces if piece])) == (words(ANSWER), 6)


def test_a_conversation_and_a_stop_string(chat: Any) -> None:
    turns = [("system", "s"), ("human", "a b"), ("ai", "c"), ("human", "d")]
    answer = stub_answer("s a b c d", 2, 6)
    reply = chat.invoke(turns, stop=[f" {answer[2]}"])
    finish = reply.response_metadata["finish_reason"]
    assert (reply.content, finish) == (words(answer[:2]), "stop")


def test_logprobs(chat: Any) -> None:
    reply = chat.bind(logprobs=True, top_logprobs=2).invoke("a b c", max_tokens=3)
    entries = reply.response_metadata["logprobs"]["content"]
    assert "".join(one["token"] for one in entries).strip() == words(ANSWER[:3])


def test_a_batch_at_once(server: Server) -> None:
    prompts = [f"p{i} q" for i in range(8)]

    async def ask() -> list[Any]:
        async with openai.DefaultAsyncHttpxClient() as http:
            chat = langchain_openai.ChatOpenAI(
                base_url=f"{server.url}/v1",
                api_key="unused",
                model="stub",
                max_completion_tokens=6,
                http_async_client=http,
            )
            return list(await chat.abatch(prompts))

    answers = [reply.content for reply in asyncio.run(ask())]
    assert answers == [words(stub_answer(prompt, 2, 6)) for prompt in prompts]
