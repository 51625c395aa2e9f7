"""The official `openai` client of Python: what it returns is what the stages compute."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.cli import stub_answer
from tests.support.real_clients import client_package, words
from tests.support.serving import Server, served

openai = client_package("openai")

pytestmark = pytest.mark.clients

USER = [{"role": "user", "content": "a b c"}]
ANSWER = stub_answer("a b c", 2, 6)
LONG = 100_000
KEY = "a-key-for-this-test"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a key and one place."""
    key_file = tmp_path_factory.mktemp("key") / "key"
    key_file.write_text(KEY)
    key_file.chmod(0o600)
    bounds = ("--max-concurrent", "1", "--max-queue", "0")
    with served("--api-key-file", str(key_file), *bounds) as running:
        yield running


def test_a_chat(client: Any) -> None:
    reply = client.chat.completions.create(model="stub", messages=USER, max_tokens=6)
    choice, usage = reply.choices[0], reply.usage
    assert (choice.message.content, choice.finish_reason) == (words(ANSWER), "length")
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 6, 9)


def test_a_streamed_chat_and_its_usage(client: Any) -> None:
    stream = client.chat.completions.create(
        model="stub",
        messages=USER,
        max_completion_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = stream
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert (text, set(reasons[:-1]), reasons[-1]) == (words(ANSWER), {None}, "length")
    assert (last.choices, last.usage.prompt_tokens, last.usage.completion_tokens) == ([], 3, 6)


def test_its_own_collector_of_streams_sees_the_same_chat(client: Any) -> None:
    # It takes an answer that ran into its limit for an error.
    asked = {"model": "stub", "messages": USER, "stop": f" {ANSWER[3]}"}
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == words(ANSWER[:3])


def test_many_at_once_are_each_answered_as_alone(server: Server) -> None:
    prompts = [f"p{i} q" for i in range(24)]

    async def one(client: Any, prompt: str, stream: bool) -> str:
        asked = {"model": "stub", "messages": [{"role": "user", "content": prompt}]}
        reply = await client.chat.completions.create(**asked, max_tokens=8, stream=stream)
        if not stream:
            return str(reply.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in reply])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
            return await asyncio.gather(
                *(one(client, prompt, i % 2 == 0) for i, prompt in enumerate(prompts))
            )

    assert asyncio.run(all_of_them()) == [words(stub_answer(p, 2, 8)) for p in prompts]


def test_logprobs_of_a_chat_spell_its_text(client: Any) -> None:
    reply = client.chat.completions.create(
        model="stub", messages=USER, max_tokens=4, logprobs=True, top_logprobs=3
    )
    entries = reply.choices[0].logprobs.content
    assert "".join(one.token for one in entries).strip() == words(ANSWER[:4])
    for one in entries:
        likeliest = one.top_logprobs[0]
        assert len(one.top_logprobs) == 3
        # The stub is greedy.
        assert (likeliest.token, likeliest.logprob) == (one.token, one.logprob)


def test_plain_completions_with_several_answers_echo_and_stop(client: Any) -> None:
    prompts, stop = ["a b c", "d e"], f" {ANSWER[3]}"
    reply = client.completions.create(
        model="stub", prompt=prompts, n=2, max_tokens=6, stop=[stop], logprobs=1
    )
    whole = [words(stub_answer(prompt, 2, 6)) for prompt in prompts for _ in range(2)]
    assert [one.text for one in reply.choices] == [text.partition(stop)[0] for text in whole]
    echoed = client.completions.create(
        model="stub", prompt=[5, 7, 9], max_tokens=0, echo=True, logprobs=1
    )
    assert echoed.choices[0].logprobs.tokens == [" 5", " 7", " 9"]


def test_models_are_listed(client: Any) -> None:
    listed = [model.id for model in client.models.list()]
    assert (listed, client.models.retrieve("stub").object) == (["stub"], "model")


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "model"),
        ({"extra_body": {"foo": 1}}, openai.BadRequestError, "foo"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"reasoning_effort": "high"}, openai.BadRequestError, "reasoning_effort"),
    ],
)
def test_a_refusal_is_its_own_kind_of_error(
    client: Any, fields: dict[str, Any], error: type[Exception], param: str
) -> None:
    with pytest.raises(error) as raised:
        client.chat.completions.create(**{"model": "stub", "messages": USER, **fields})
    assert (raised.value.param, raised.value.type) == (param, "invalid_request_error")


def test_a_wrong_key_is_told_as_one(narrow: Server) -> None:
    with openai.OpenAI(base_url=f"{narrow.url}/v1", api_key="wrong") as client:
        with pytest.raises(openai.AuthenticationError) as raised:
            client.models.list()
        assert raised.value.code == "invalid_api_key"
        assert [one.id for one in client.with_options(api_key=KEY).models.list()] == ["stub"]


def test_a_full_server_is_told_as_one_and_waited_for(narrow: Server) -> None:
    with openai.OpenAI(base_url=f"{narrow.url}/v1", api_key=KEY, max_retries=0) as client:
        asked = {"model": "stub", "messages": USER}
        stream = client.chat.completions.create(**asked, max_tokens=LONG, stream=True)
        next(stream)
        with pytest.raises(openai.RateLimitError) as raised:
            client.chat.completions.create(**asked, max_tokens=1)
        assert int(raised.value.response.headers["retry-after"]) >= 1
        patient = client.with_options(max_retries=5).chat.completions
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(patient.create, **asked, max_tokens=1)
            stream.close()
            assert waiting.result().choices[0].message.content == str(ANSWER[0])


def test_a_stream_that_is_closed_ends_the_work(server: Server, client: Any) -> None:
    asked = {"model": "stub", "messages": USER, "max_tokens": LONG}
    with client.chat.completions.create(**asked, stream=True) as stream:
        next(stream)
    server.wait_until(lambda: server.metric("stageline_running ") == 0)


def test_a_stage_lost_for_good_is_an_error_in_mid_stream_and_no_end_of_text() -> None:
    reasons = []
    with served("--restarts", "0") as server:
        url = f"{server.url}/v1"
        with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
            stream = client.completions.create(
                model="stub", prompt="a", max_tokens=LONG, stream=True
            )
            next(stream)
            os.kill(server.worker_pids[-1], signal.SIGKILL)
            with pytest.raises(openai.APIError) as raised:
                reasons += [chunk.choices[0].finish_reason for chunk in stream]
    assert (set(reasons) <= {None}, raised.value.code) == (True, "stage_lost")
    assert "killed by SIGKILL" in json.dumps(raised.value.body)
