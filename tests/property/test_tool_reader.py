"""Calls are found however the text is cut; nothing of a marker is shown, nothing else is lost."""

from __future__ import annotations

import itertools
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tool_calls.formats import tool_format_of
from orchestrator.tool_calls.pieces import CallArguments, CallBegun, Piece, Text
from orchestrator.tool_calls.reader import ToolReader
from tests.support.tool_templates import TEMPLATES, rendered

# What formats are made of, whole and broken, and what looks like it.
FRAGMENTS = (
    "<tool_call>", "</tool_call>", "<tool_", "<function=f>", "</function>", "<parameter=a>",
    "</parameter>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL", "f", "<|tool_call|>",
    "<|/tool_call|>", "<|python_tag|>", "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>", "function",
    "<\uff5ctool\u2581sep\uff5c>", "```json\n", "```", "f\n", '{"name": "f", "arguments": {}}',
    '{"name": "f", "parameters": {"a": "}"}}', '[{"name": "f", "arguments": {"a": "<tool_call>"}}]',
    '{"a": "\\"', '"}', "{", "}", "[", "]", ";", " ", "\n", "word", "\u00e9", "{}", '{"a": 1}',
)  # fmt: skip
SHOWN = st.text(alphabet="ab {<[\n\u00e9", max_size=12)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["f", "get_weather", "a-b"]),
        st.dictionaries(st.sampled_from(["a", "city"]), VALUES, max_size=2),
    ),
    min_size=1,
    max_size=3,
)


def reader_of(name: str) -> ToolReader:
    """Return a reader that numbers the calls' ids."""
    tool_format = tool_format_of(TEMPLATES[name])
    assert tool_format is not None
    numbers = itertools.count()
    return ToolReader(tool_format.syntax, new_id=lambda: f"call {next(numbers)}")


def joined(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with neighbouring texts as one."""
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Text) and result and isinstance(before := result[-1], Text):
            result[-1] = Text(before.text + piece.text)
        else:
            result.append(piece)
    return result


def read(name: str, texts: list[str]) -> list[Piece]:
    reader = reader_of(name)
    pieces = [piece for text in texts for piece in reader.push(text)]
    return joined([*pieces, *reader.finish()])


def cut(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(min(one, len(text)) for one in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@pytest.mark.parametrize("name", TEMPLATES)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.lists(st.integers(0, 200)))
@settings(max_examples=60)
def test_what_is_read_does_not_depend_on_how_the_text_is_cut(
    name: str, fragments: list[str], cuts: list[int]
) -> None:
    text = "".join(fragments)
    whole = read(name, [text])
    assert (read(name, cut(text, cuts)), read(name, list(text))) == (whole, whole)


@pytest.mark.parametrize("name", TEMPLATES)
@given(SHOWN)
@settings(max_examples=30)
def test_an_answer_without_calls_is_shown_as_it_is(name: str, text: str) -> None:
    assert read(name, list(text)) == ([Text(text)] if text else [])


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "qwen-coder"])
@given(CALLS, st.sampled_from(["", "Let me look.", "Look <here>"]), st.lists(st.integers(0, 200)))
@settings(max_examples=40)
def test_calls_come_as_the_template_writes_them(
    name: str, calls: list[tuple[str, dict[str, Any]]], before: str, cuts: list[int]
) -> None:
    if name == "llama":
        before = ""  # It writes a call or text, and not both.
    pieces = read(name, cut(before + rendered(TEMPLATES[name], calls), cuts))
    expected: list[Piece] = [Text(before)] if before else []
    for index, (function, arguments) in enumerate(calls):
        expected.append(CallBegun(index, f"call {index}", function))
        expected.append(CallArguments(index, json.dumps(arguments, ensure_ascii=False)))
    assert pieces == expected
