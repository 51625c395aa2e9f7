"""The formats of calls: which one a template has, what is a call in it, what a grammar forces."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.grammar.grammars import Grammars
from orchestrator.grammar.refused import GrammarRefused
from orchestrator.tool_calls.formats import ToolFormat, tool_format_of
from orchestrator.tool_calls.history import for_template
from orchestrator.tool_calls.pieces import CallArguments, CallBegun, Piece, Text
from tests.support.schema_rules import fits
from tests.support.small_vocabulary import ENDS, PIECES, VOCABULARY, written_by
from tests.support.tool_templates import TEMPLATES, rendered

GRAMMARS = Grammars(VOCABULARY, ENDS)
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["a", "abc"]},
        "days": {"$ref": "#/$defs/days"},
        "is_it": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 20}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "description": "No parameters."}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}


def format_of(name: str) -> ToolFormat:
    found = tool_format_of(TEMPLATES[name])
    assert found is not None
    return found


def read(name: str, text: str, tools: Sequence[dict[str, Any]] = ()) -> list[Piece]:
    reader = format_of(name).reader(tools)
    return [*reader.push(text), *reader.finish()]


def calls_in(pieces: Sequence[Piece]) -> list[tuple[str, Any]]:
    """Return names and arguments; "" with the text where there is text."""
    names = [one.name for one in pieces if isinstance(one, CallBegun)]
    arguments = [json.loads(one.text) for one in pieces if isinstance(one, CallArguments)]
    texts = [("", one.text) for one in pieces if isinstance(one, Text)]
    return [*zip(names, arguments, strict=True), *texts]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_has_its_format(name: str) -> None:
    assert format_of(name).name == name.split(",")[0]


@pytest.mark.parametrize(
    "template",
    [None, "", "{{ messages }}", "{{ messages }}<tool_call>", "{{ tools }}<|channel|>commentary"],
)
def test_a_template_without_tools_or_with_unknown_ones_has_none(template: str | None) -> None:
    assert tool_format_of(template) is None


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', [("f", {})]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', [("f", {"a": 1})]),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
            [("f", {"a": "</tool_call>"})],
        ),
        ("qwen-coder", "<function=f>\n</function>\n</tool_call>", [("f", {})]),
        ("llama", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', [("f", {"a": 1})]),
        ("mistral", '[TOOL_CALLS]f{"a": 1}', [("f", {"a": 1})]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}', [("f", {"a": 1})]),
    ],
)
def test_what_models_vary_is_a_call_still(
    name: str, text: str, calls: list[tuple[str, Any]]
) -> None:
    assert calls_in(read(name, text)) == calls


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "Write <tool_call> and then JSON."),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>'),
        ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "cut off'),
        ("qwen-coder", "<tool_call>\n<function=f>\n<parameter=a>\ncut off"),
        ("qwen-coder", "<tool_call>\n<function=f>\ntext</function>"),
        ("llama", '{"answer": 42}'),
        ("llama", 'It is {"name": "f", "parameters": {}}'),
        ("mistral", "[TOOL_CALLS]f and more"),
        ("mistral", "[TOOL_CALLS][]"),
        ("deepseek", "<\uff5ctool\u2581call\u2581begin\uff5c>f"),
        ("tool-call-list", '<|tool_call|>[{"name": "f", "arguments": {}}, 5]'),
    ],
)
def test_what_is_no_whole_call_is_shown_as_text(name: str, text: str) -> None:
    pieces = read(name, text)
    assert "".join(one.text for one in pieces if isinstance(one, Text)) == text


def test_nothing_is_held_back_that_cannot_become_a_call() -> None:
    reader = format_of("hermes").reader()
    assert [reader.push(text) for text in ("a < b", " <tool", "s>", " \n", "c")] == [
        [Text("a < b")],
        [],
        [Text(" <tools>")],
        [],
        [Text(" \nc")],
    ]


def test_white_space_around_calls_is_not_shown() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert calls_in(read("hermes", f"\n\n{call}\n{call}\n")) == [("f", {}), ("f", {})]


@pytest.mark.parametrize(
    ("name", "pattern"), [("hermes", "call_[a-zA-Z0-9]{24}"), ("mistral", "[a-zA-Z0-9]{9}")]
)
def test_ids_have_the_form_that_the_template_takes(name: str, pattern: str) -> None:
    ids = [one.call_id for one in read(name, text_of(name)) if isinstance(one, CallBegun)]
    assert len(ids) == len(set(ids)) == 2
    assert all(re.fullmatch(pattern, one) for one in ids)


def text_of(name: str) -> str:
    return rendered(TEMPLATES[name], [("now", {}), ("now", {})])


def test_the_schema_tells_which_values_are_text() -> None:
    properties = {
        "text": {"type": "string"},
        "maybe": {"type": ["string", "null"]},
        "number": {"type": "integer"},
        "words": {"enum": ["1", "2"]},
    }
    tools = [{"function": {"name": "f", "parameters": {"properties": properties}}}]
    given = {"text": "1\n2", "maybe": "null", "number": "3", "words": "1", "other": "[4]"}
    text = rendered(TEMPLATES["qwen-coder"], [("f", given)])
    assert calls_in(read("qwen-coder", text, tools)) == [
        ("f", {"text": "1\n2", "maybe": None, "number": 3, "words": "1", "other": [4]})
    ]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_answer_is_calls_that_fit(name: str, choice: str | dict[str, Any]) -> None:
    tool_format = format_of(name)
    grammar = tool_format.grammar(TOOLS, choice, GRAMMARS)
    assert grammar is not None
    counts = set()
    for seed in range(8):
        chosen = random.Random(seed)

        def choose(allowed: Sequence[int], chosen: random.Random = chosen) -> int:
            is_over = ENDS[0] in allowed and chosen.random() < 0.4
            return ENDS[0] if is_over else chosen.choice(allowed)

        text = written_by(grammar.begin(), choose, max_tokens=4000)
        assert text is not None
        reader = tool_format.reader(TOOLS)
        calls = calls_in([*reader.push(text), *reader.finish()])
        allowed = [("weather", PARAMETERS), ("now", {"additionalProperties": False})]
        counts.add(len(calls))
        for called, arguments in calls:
            assert any(called == one and fits(arguments, of) for one, of in allowed), text
    assert (min(counts), max(counts) == 1) == (1, choice is NAMED or name == "llama")


def test_one_call_only_where_calls_are_not_parallel() -> None:
    grammar = format_of("mistral, named").grammar(TOOLS, "required", GRAMMARS, parallel=False)
    assert grammar is not None
    constraint = grammar.begin()
    for piece in (b"[TOOL_CALLS]", b"n", b"o", b"w", b"[ARGS]", b"{}"):
        constraint.take(PIECES.index(piece))
    seen: list[Sequence[int]] = []
    written_by(constraint, lambda allowed: ENDS[0], lambda text, allowed: seen.append(allowed))
    assert seen == [list(ENDS)]


def test_auto_and_none_leave_the_answer_free() -> None:
    tool_format = format_of("hermes")
    assert [tool_format.grammar(TOOLS, choice, GRAMMARS) for choice in ("auto", "none")] == [
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("tools", "choice", "words"),
    [
        (TOOLS, {"type": "function", "function": {"name": "g"}}, "there is no such tool"),
        (
            [{"function": {"name": "f", "parameters": {"type": "string"}}}],
            "required",
            "the parameters of 'f' are {'type': 'string'}, they must be an object schema",
        ),
        (
            [{"function": {"name": "f", "parameters": {"$ref": "#"}}}],
            "required",
            "'#' refers to itself without content",
        ),
        (
            [{"function": {"name": "f", "parameters": {"not": {}}}}],
            "required",
            "a tool's parameters cannot be held to: Unimplemented keys",
        ),
    ],
)
def test_a_call_that_cannot_be_forced_is_refused(
    tools: list[dict[str, Any]], choice: str | dict[str, Any], words: str
) -> None:
    with pytest.raises(GrammarRefused, match=words):
        format_of("hermes").grammar(tools, choice, GRAMMARS)


@pytest.mark.parametrize(
    ("name", "arguments"), [("hermes", {"a": 1}), ("deepseek", '{"a": 1}'), (None, {"a": 1})]
)
def test_templates_get_the_arguments_of_earlier_calls_as_they_take_them(
    name: str | None, arguments: object
) -> None:
    def said(given: object) -> list[dict[str, Any]]:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
        broken = {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{"}}
        return [
            {"role": "user", "content": "Do."},
            {"role": "assistant", "content": "", "tool_calls": [call, broken]},
        ]

    tool_format = None if name is None else format_of(name)
    assert for_template(said('{"a": 1}'), tool_format) == tuple(said(arguments))
