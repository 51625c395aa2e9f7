"""Messages as OpenAI's interface has them become what chat templates take."""

from __future__ import annotations

from typing import Any

import pytest

from worker.chat import chat_messages
from worker.protocol.schema import ErrorCode, ProtocolError

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}


def refusal(message: dict[str, Any]) -> str:
    with pytest.raises(ProtocolError) as caught:
        chat_messages([message])
    assert caught.value.code is ErrorCode.BAD_FIELD
    return caught.value.text


def test_a_turn_with_tools_is_taken_and_the_arguments_become_an_object() -> None:
    made = chat_messages(
        [
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
    )
    function = {"name": "f", "arguments": {"a": [1]}}
    assert made == [
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    assert CALL["function"] == {"name": "f", "arguments": '{"a": [1]}'}


@pytest.mark.parametrize(("arguments", "known"), [("", {}), ({"b": 2}, {"b": 2})])
def test_arguments_may_be_none_or_an_object_already(arguments: Any, known: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (made,) = chat_messages([{"role": "assistant", "tool_calls": [call]}])
    assert made["tool_calls"][0]["function"]["arguments"] == known


@pytest.mark.parametrize("arguments", ["{", "[1]", "3", "null", None, 7, "[" * 100_000])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    assert "JSON object" in refusal({"role": "assistant", "tool_calls": [call]})


@pytest.mark.parametrize("calls", ["x", [1], [{}], [{"function": {"arguments": "{}"}}]])
def test_tool_calls_name_functions(calls: Any) -> None:
    assert "'tool_calls'" in refusal({"role": "assistant", "tool_calls": calls})


def test_half_a_surrogate_pair_hides_in_no_arguments() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": "\\ud83d"}'}}
    assert "surrogate" in refusal({"role": "assistant", "tool_calls": [call]})


def test_text_parts_become_one_string_unless_the_template_takes_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = {"role": "user", "content": parts}
    assert chat_messages([message]) == [{"role": "user", "content": "ab"}]
    assert chat_messages([message], keep_parts=True) == [message]


@pytest.mark.parametrize(
    ("part", "named"),
    [({"type": "image_url", "image_url": {}}, "'image_url'"), ("x", "'str'"), ({}, "None")],
)
def test_parts_of_other_types_are_refused_by_name(part: Any, named: str) -> None:
    assert f"part of type {named}" in refusal({"role": "user", "content": [part]})
