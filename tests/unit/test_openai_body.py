"""Bodies of OpenAI's interface: one JSON object, read field by field or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.serve.errors import ApiError
from orchestrator.serve.limits import Limits
from orchestrator.serve.openai.body import parse_object
from orchestrator.serve.openai.chat_request import read_chat_request
from orchestrator.serve.openai.completion_request import read_completion_request

LIMITS = Limits(max_new_tokens=1000)
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> Any:
    return read_chat_request({"model": "m", "messages": [USER], **fields}, LIMITS)


def text(**fields: Any) -> Any:
    return read_completion_request({"model": "m", "prompt": "hi", **fields}, LIMITS)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "line 1, column 1"),
        (b'{"a": 1,}', "line 1, column"),
        (b'{"a":\n nope}', "line 2, column 2"),
        (b"[1]", "a list"),
        (b"null", "null"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "1e999"),
        (b'{"a": "\xff"}', "byte 7"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": ' + b"[" * 100_000, "more than 100 levels"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "more than 100 levels"),
        (b'{"a": ' + b"9" * 5000 + b"}", "thousands of digits"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused_and_told_where(body: bytes, words: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_object(body)
    assert (refused.value.status, words in refused.value.message) == (400, True)


def test_a_body_of_many_objects_is_not_a_deep_one() -> None:
    body = b'{"a": [' + b",".join([b"[{}]"] * 300) + b"]}"
    assert len(parse_object(body)["a"]) == 300


# What OpenAI documents, with a value that this server cannot serve; then what is no field at all.
REFUSED_CHAT: dict[str, Any] = {
    "audio": {"voice": "x"},
    "frequency_penalty": 2.1,
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "ignore_eos": 1,
    "logit_bias": {"x": 1},
    "logprobs": 1,
    "max_completion_tokens": 0,
    "max_tokens": 1001,
    "messages": [],
    "metadata": "x",
    "modalities": ["audio"],
    "model": "",
    "moderation": {},
    "n": 17,
    "parallel_tool_calls": "yes",
    "prediction": {"type": "content"},
    "presence_penalty": "1",
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "response_format": {"type": "xml"},
    "safety_identifier": 1,
    "seed": 1.5,
    "service_tier": "flex",
    "stop": [""],
    "store": True,
    "stream": 1,
    "stream_options": {"include_usage": True},
    "temperature": 2.5,
    "tool_choice": "required",
    "tools": [{"type": "custom"}],
    "top_logprobs": 1,
    "top_p": True,
    "user": 1,
    "verbosity": "low",
    "web_search_options": {},
    "best_of": 1,
    "foo": 1,
}


@pytest.mark.parametrize("field", REFUSED_CHAT)
def test_what_a_chat_cannot_serve_is_refused_by_name(field: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**{field: REFUSED_CHAT[field]})
    named = (refused.value.param or "").replace("[", ".").split(".")[0]
    assert (refused.value.status, named, f"'{field}" in refused.value.message) == (400, field, True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 2),
        ("echo", 1),
        ("logprobs", 21),
        ("logprobs", True),
        ("max_tokens", -1),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", ["a", 1]),
        ("prompt", [-1]),
        ("prompt", ["a"] * 17),
        ("suffix", "x"),
        ("messages", [USER]),
    ],
)
def test_what_a_completion_cannot_serve_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ApiError) as refused:
        text(**{field: value})
    assert (refused.value.status, refused.value.param) == (400, field)


@pytest.mark.parametrize(
    ("read", "fields", "message"),
    [
        (chat, {"max_token": 1}, "unknown field 'max_token': did you mean 'max_tokens'?"),
        (
            chat,
            {"messages": [{**USER, "contents": "a"}]},
            "unknown field 'messages[0].contents': did you mean 'messages[0].content'?",
        ),
        (chat, {"foo": 1}, "unknown field 'foo': leave it away"),
        (
            chat,
            {"prompt": "a"},
            "'prompt' belongs to /v1/completions: ask there, or leave it away",
        ),
        (
            text,
            {"messages": [USER], "prompt": None},
            "'messages' belongs to /v1/chat/completions: ask there, or leave it away",
        ),
        (
            chat,
            {"n": 20},
            "'n' is 20, it must be an integer from 1 to 16 (--max-choices of the server)",
        ),
        (
            chat,
            {"max_completion_tokens": 1001},
            (
                "'max_completion_tokens' is 1001, it must be an integer from 1 to 1000 "
                "(--max-new-tokens of the server)"
            ),
        ),
        (
            text,
            {"prompt": ["a"] * 9, "n": 2},
            (
                "9 prompts with n = 2 ask for 18 answers, at most 16 are given to one request "
                "(--max-choices of the server); send several requests"
            ),
        ),
        (text, {"prompt": []}, "'prompt' is empty; give a string or token ids"),
        (text, {"prompt": None}, "'prompt' is missing; give a string or token ids"),
        (
            text,
            {"prompt": [[1], []]},
            "'prompt' has an empty list of token ids at 1; give at least one id",
        ),
    ],
)
def test_a_refusal_says_what_to_do(read: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(**fields)
    assert refused.value.message == message


def test_null_and_what_is_done_anyway_change_nothing() -> None:
    idle = {
        "store": False,
        "service_tier": "auto",
        "user": "u",
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "modalities": ["text"],
        "verbosity": "medium",
        "tools": [],
        "stop": [],
        "logit_bias": {},
        "response_format": {"type": "text"},
    }
    absent = dict.fromkeys(REFUSED_CHAT.keys() - {"model", "messages"}, None)
    assert chat(seed=1, **idle) == chat(seed=1) == chat(**{**absent, "seed": 1})


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[0]"),
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "judge", "content": "hi"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": "hi", "tool_calls": []}, "messages[0].tool_calls"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "tool", "content": "hi"}, "messages[0].tool_call_id"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "content": "", "audio": {"id": "x"}}, "messages[0].audio"),
    ],
)
def test_a_message_that_cannot_be_served_is_named(message: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(messages=[message])
    assert (refused.value.status, refused.value.param) == (400, param)


def test_messages_reach_the_template_whole() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    ]
    assert chat(messages=given).messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    )


NAMED = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            "tools[0].function.strict",
        ),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_tools_that_must_not_be_called_are_not_shown() -> None:
    assert chat(tools=[TOOL], tool_choice="none").tools is None


def test_without_a_seed_each_request_draws_one() -> None:
    assert len({text().asked.sampling.seed for _ in range(8)}) == 8
