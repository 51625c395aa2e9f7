"""What answers can be held to, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from orchestrator.grammar.finite import finite
from orchestrator.grammar.grammars import Grammars
from orchestrator.grammar.refused import GrammarRefused
from orchestrator.grammar.response_format import grammar_of
from orchestrator.vocabulary import Vocabulary
from tests.support.small_vocabulary import ENDS, PIECES, VOCABULARY, allowed_ids

GRAMMARS = Grammars(VOCABULARY, ENDS)
SCHEMA = {"type": "object", "properties": {"abc": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {}}, 'Unimplemented keys: ["not"]'),
        ({"type": "text"}, "Invalid type: text"),
        ({"$ref": "#/nowhere"}, "Pointer '/nowhere' does not exist"),
        (
            {"type": "integer", "minimum": 5, "maximum": 3},
            "Unsatisfiable schema: minimum (5) is greater than maximum (3)",
        ),
        (
            {"type": "string", "pattern": "*a"},
            "regex parse error: repetition operator missing expression",
        ),
        (
            {"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
            "'oneOf' needs schemas that plainly exclude each other, so use 'anyOf'",
        ),
        (
            {"type": ["object", "null"], "properties": {"a": {"type": "object", "$ref": "#"}}},
            "# refers to itself with more keys beside '$ref'",
        ),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_refused_in_one_sentence(
    schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GrammarRefused) as caught:
        GRAMMARS.json_schema(schema)
    assert str(caught.value) == (
        f"the JSON schema cannot be held to: {reason}; use a simpler one, or ask for plain text"
    )


NODE = {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "#"}, "'#' refers to itself without content; say what it is"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "'#/$defs/a' refers to itself without content; say what it is",
        ),
        (
            {"$ref": "#/$defs/n", "$defs": {"n": NODE}},
            "no value that ends fits '#/$defs/n'; let it end without itself",
        ),
        (
            {"$anchor": "all", "type": "array", "items": {"$ref": "#all"}, "minItems": 1},
            "no value that ends fits '#all'; let it end without itself",
        ),
        (
            {"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1},
            "no value that ends fits '#'; let it end without itself",
        ),
    ],
)
def test_a_schema_that_leads_back_to_itself_for_ever_is_refused(
    schema: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GrammarRefused) as caught:
        GRAMMARS.json_schema(schema)
    assert str(caught.value) == f"the JSON schema cannot be held to: {reason}"


def test_a_schema_with_many_references_takes_no_long_time() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(2000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d2000": {"type": "null"}}}
    begun_s = time.process_time()
    assert finite(schema) == schema
    assert time.process_time() - begun_s < 10


def test_a_grammar_that_leads_back_to_itself_is_refused_once_it_is_begun() -> None:
    constraint = GRAMMARS.lark("start: a\na: a").begin()
    with pytest.raises(GrammarRefused, match="nothing fits what the answer must be"):
        constraint.allowed()


def test_a_reference_to_elsewhere_is_not_followed() -> None:
    with pytest.raises(GrammarRefused, match="Default retriever does not fetch resources"):
        GRAMMARS.json_schema({"$ref": "http://localhost:9/schema"})


def test_a_schema_of_any_length_is_not_taken() -> None:
    with pytest.raises(GrammarRefused, match="at most 262144 are taken"):
        GRAMMARS.json_schema({"description": "x" * 300_000})


@pytest.mark.parametrize(
    ("response_format", "words"),
    [
        ({}, "response_format.type is None"),
        ({"type": "xml"}, "must be one of text, json_object, json_schema"),
        ({"type": "text", "schema": {}}, "response_format has the field 'schema'"),
        ({"type": "json_schema"}, "response_format.json_schema is None"),
        ({"type": "json_schema", "json_schema": {"more": 1}}, "has the field 'more'"),
        ({"type": "json_schema", "json_schema": {"schema": 1}}, "json_schema.schema is 1"),
    ],
)
def test_another_response_format_is_refused_by_name(
    response_format: dict[str, Any], words: str
) -> None:
    with pytest.raises(GrammarRefused) as caught:
        grammar_of(response_format, GRAMMARS)
    assert words in str(caught.value)


def test_a_response_format_says_what_the_answer_must_be() -> None:
    described = {"name": "it", "description": "of it", "schema": SCHEMA, "strict": False}
    assert [
        grammar_of(one, GRAMMARS)
        for one in (
            None,
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "any"}},
            {"type": "json_schema", "json_schema": described},
        )
    ] == [
        None,
        None,
        GRAMMARS.json_object(),
        GRAMMARS.json_object(),
        GRAMMARS.json_schema(SCHEMA),
    ]


def test_no_more_than_the_newest_grammars_are_kept() -> None:
    grammars = Grammars(VOCABULARY, ENDS, most_kept=3)
    first, *_, last = (grammars.json_schema({"const": number}) for number in range(4))
    again = [grammars.json_schema({"const": number}) for number in (3, 0)]
    assert [one is old for one, old in zip(again, (last, first), strict=True)] == [True, False]


def test_a_token_that_is_not_allowed_is_not_taken() -> None:
    constraint = GRAMMARS.json_object().begin()
    with pytest.raises(RuntimeError, match="token 65 was chosen, which the grammar"):
        constraint.take(65)


def test_one_answer_does_not_move_another() -> None:
    grammar = GRAMMARS.json_object()
    first, second = grammar.begin(), grammar.begin()
    before = allowed_ids(second)
    first.take(PIECES.index(b"{"))
    assert (allowed_ids(second), allowed_ids(grammar.begin())) == (before, before)


def test_after_the_end_come_only_ends() -> None:
    constraint = GRAMMARS.json_schema({"const": None}).begin()
    constraint.take(PIECES.index(b"null"))
    for end in ENDS:
        assert allowed_ids(constraint) == list(ENDS)
        constraint.take(end)
    assert allowed_ids(constraint) == list(ENDS)


@pytest.mark.parametrize(
    ("vocabulary", "ends"),
    [(VOCABULARY, ()), (VOCABULARY, (9999,)), (Vocabulary((b"", b""), frozenset(), None), (0,))],
)
def test_without_text_or_an_end_nothing_can_be_promised(
    vocabulary: Vocabulary, ends: tuple[int, ...]
) -> None:
    with pytest.raises(GrammarRefused, match="at least one of each is needed"):
        Grammars(vocabulary, ends)
