"""Any JSON object is read exactly or refused with a sentence; nothing in between."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.serve.errors import ApiError
from orchestrator.serve.limits import Limits
from orchestrator.serve.openai.body import parse_object
from orchestrator.serve.openai.chat_request import read_chat_request
from orchestrator.serve.openai.completion_request import read_completion_request
from tests.support.openai_bodies import chat_bodies, json_values, text_bodies

LIMITS = Limits()


@given(st.binary(max_size=60) | json_values().map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_an_object_or_refused(data: bytes) -> None:
    try:
        assert isinstance(parse_object(data), dict)
    except ApiError as refused:
        assert refused.status == 400


@given(chat_bodies())
def test_any_chat_body_is_read_or_refused_with_a_sentence(body: dict[str, Any]) -> None:
    try:
        read_chat_request(body, LIMITS)
    except ApiError as refused:
        assert (refused.status, bool(refused.message)) == (400, True)


@given(text_bodies())
def test_any_completion_body_is_read_or_refused_with_a_sentence(body: dict[str, Any]) -> None:
    try:
        read_completion_request(body, LIMITS)
    except ApiError as refused:
        assert (refused.status, bool(refused.message)) == (400, True)


FIELDS = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(0, 100),
    "min_p": st.floats(0, 1),
    "seed": st.integers(-(2**63), 2**63 - 1),
}


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_what_is_asked_for_is_what_the_stages_are_asked(fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "prompt": "p", **fields}).encode()
    sampling = read_completion_request(parse_object(body), LIMITS).asked.sampling
    assert {name: getattr(sampling, name) for name in fields} == fields


@given(
    st.text(min_size=1)
    | st.lists(st.text(), min_size=1, max_size=4)
    | st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1), min_size=1, max_size=4)
    | st.lists(st.integers(0, 2**31 - 1), min_size=1)
)
def test_prompts_keep_their_order_and_their_ids(prompt: Any) -> None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    read = read_completion_request(parse_object(body), LIMITS).prompts
    is_one = isinstance(prompt, str) or isinstance(prompt[0], int)
    expected = [prompt] if is_one else prompt
    assert [one if isinstance(one, str) else list(one) for one in read] == expected
