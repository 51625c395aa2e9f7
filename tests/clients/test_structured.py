"""Calls of tools and JSON of a schema, asked of a real model through each client's own way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.real_clients import (
    ask_by_node,
    client_package,
    installed_npm_client,
    taught_tools,
)
from tests.support.serving import Server, served

openai = client_package("openai")
pydantic = client_package("pydantic")
langchain_openai = client_package("langchain_openai")

pytestmark = [pytest.mark.clients, pytest.mark.demo_model, pytest.mark.timeout(300)]

QUESTION = "What is the weather in Paris?"
USER = {"role": "user", "content": QUESTION}
CITIES = ("Paris", "Rome", "Oslo")


class Weather(pydantic.BaseModel):
    """Tell the weather of a city."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome", "Oslo"]
    days: Literal[1, 2, 3]


SCHEMA = Weather.model_json_schema()
FUNCTION = {"name": "Weather", "description": Weather.__doc__, "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "Weather", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def server(demo_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = taught_tools(demo_model_path, tmp_path_factory.mktemp("model"))
    stages = ("--local", "2", "--model-id", str(folder), "--no-bundle", "--threads", "1")
    with served("--served-model-name", "smollm2", stages=stages) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as one:
        yield one


def test_openai_calls_a_tool_and_answers_with_what_it_returned(client: Any) -> None:
    asked = {"model": "smollm2", "temperature": 0, "tools": TOOLS}
    reply = client.chat.completions.create(**asked, messages=[USER], tool_choice="required")
    message = reply.choices[0].message
    (call,) = message.tool_calls
    assert (reply.choices[0].finish_reason, call.function.name) == ("tool_calls", "Weather")
    assert Weather.model_validate_json(call.function.arguments).city in CITIES
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}
    told = client.chat.completions.create(
        **asked, messages=[USER, message, result], tool_choice="none", max_tokens=12
    )
    assert told.choices[0].message.content.strip() != ""


def test_openai_streams_the_same_call(client: Any) -> None:
    asked = {"model": "smollm2", "temperature": 0, "tools": TOOLS, "messages": [USER]}
    asked["tool_choice"] = {"type": "function", "function": {"name": "Weather"}}
    (whole,) = client.chat.completions.create(**asked).choices[0].message.tool_calls
    with client.chat.completions.stream(**asked) as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.name == whole.function.name == "Weather"
    assert streamed.function.arguments == whole.function.arguments


def test_openai_parses_an_answer_of_a_schema(client: Any) -> None:
    reply = client.chat.completions.parse(
        model="smollm2", messages=[USER], temperature=0, response_format=Weather
    )
    assert reply.choices[0].message.parsed.city in CITIES


def test_langchain_calls_a_tool_and_returns_an_answer_of_a_schema(server: Server) -> None:
    with openai.DefaultHttpxClient() as http:
        chat = langchain_openai.ChatOpenAI(
            base_url=f"{server.url}/v1",
            api_key="unused",
            model="smollm2",
            temperature=0,
            http_client=http,
        )
        called = chat.bind_tools([Weather], tool_choice="any").invoke(QUESTION)
        ways = ("json_schema", "function_calling")
        answers = [
            chat.with_structured_output(Weather, method=way).invoke(QUESTION) for way in ways
        ]
    (call,) = called.tool_calls
    assert (call["name"], Weather(**call["args"]).city in CITIES) == ("Weather", True)
    assert [type(answer) for answer in answers] == [Weather, Weather]


def test_npm_calls_a_tool_and_returns_an_answer_of_a_schema(server: Server, tmp_path: Path) -> None:
    called, told = ask_by_node(
        installed_npm_client(tmp_path),
        server.url,
        server.model,
        ("whole", {"messages": [USER], "tools": TOOLS, "tool_choice": "required"}),
        ("whole", {"messages": [USER], "response_format": FORMAT}),
    )
    (call,) = called["calls"]
    assert (called["finish_reason"], call["name"]) == ("tool_calls", "Weather")
    for text in (call["arguments"], told["text"]):
        assert Weather.model_validate_json(text).city in CITIES


def test_llm_prints_an_answer_of_a_schema(server: Server, tmp_path: Path) -> None:
    client_package("llm")
    known = {"model_id": "served", "model_name": "smollm2", "api_base": f"{server.url}/v1"}
    # JSON is YAML.
    text = json.dumps([{**known, "supports_schema": True}])
    (tmp_path / "extra-openai-models.yaml").write_text(text)
    words = ("-m", "served", "--no-stream", "--schema", json.dumps(SCHEMA), QUESTION)
    done = subprocess.run(
        [sys.executable, "-m", "llm", *words],
        env={**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "unused"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert Weather.model_validate_json(done.stdout).city in CITIES
