"""Whatever a model picks of the allowed tokens, its answer is what was asked for."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.grammar.grammars import Grammars
from tests.support.schema_rules import fits
from tests.support.small_vocabulary import ENDS, PIECES, VOCABULARY, written_by

NAMES = ("name", "abc", "caf\u00e9", 'a"b', "\U0001f642")
GRAMMARS = Grammars(VOCABULARY, ENDS)
# Where a model goes on picking at random it may well never end; after this many tokens it picks
# what closes strings, lists and objects wherever it can.
WILD_TOKENS = 40
CLOSERS = [b'"', b"}", b"]", b"n", b"u", b"l", b",", b"0", b"1"]


def scalars() -> st.SearchStrategy[dict[str, Any]]:
    lengths = st.tuples(st.integers(0, 3), st.integers(0, 4))
    bounds = st.tuples(st.integers(-20, 20), st.integers(0, 30))
    return st.one_of(
        st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": "number"}]),
        lengths.map(lambda n: {"type": "string", "minLength": n[0], "maxLength": n[0] + n[1]}),
        bounds.map(lambda n: {"type": "integer", "minimum": n[0], "maximum": n[0] + n[1]}),
        st.lists(st.sampled_from([*NAMES, 7, None, True]), min_size=1, max_size=3).map(
            lambda values: {"enum": values}
        ),
    )


def composed(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    objects = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties) or ["x"])).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required & set(properties)),
                "additionalProperties": False,
            }
        )
    )
    arrays = st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
        lambda n: {"type": "array", "items": n[0], "minItems": n[1], "maxItems": n[1] + n[2]}
    )
    choices = st.lists(inner, min_size=1, max_size=3).map(lambda of: {"anyOf": of})
    return st.one_of(objects, arrays, choices)


# A number that something has to follow, where a wish for digits would never end.
NUMBER_FIRST = {
    "type": "object",
    "properties": {"abc": {"type": "number"}, "name": {"type": "null"}},
    "required": ["abc", "name"],
    "additionalProperties": False,
}
SCHEMAS = st.recursive(scalars(), composed, max_leaves=6)


def rambling(seed: int) -> Callable[[Sequence[int]], int]:
    """Return a model that knows nothing, and in the end wants to come to one."""
    chosen, steps = random.Random(seed), 0

    def choose(allowed: Sequence[int]) -> int:
        nonlocal steps
        steps += 1
        if steps > WILD_TOKENS:
            for one in [*ENDS, *map(PIECES.index, CLOSERS)]:
                if one in allowed:
                    return one
        return chosen.choice(allowed)

    return choose


@given(SCHEMAS, st.integers(0, 2**32))
@example({"type": "array", "items": NUMBER_FIRST, "minItems": 1, "maxItems": 2}, 0)
@settings(max_examples=60)
def test_an_answer_fits_its_schema(schema: dict[str, Any], seed: int) -> None:
    text = written_by(GRAMMARS.json_schema(schema).begin(), rambling(seed))
    assert text is not None
    assert fits(json.loads(text), schema), text


@given(SCHEMAS, st.integers(0, 2**32))
@settings(max_examples=40)
def test_every_end_is_allowed_exactly_where_the_answer_is_whole(
    schema: dict[str, Any], seed: int
) -> None:
    document = {
        "type": "object",
        "properties": {"of": schema},
        "required": ["of"],
        "additionalProperties": False,
    }

    def see(text: bytes, allowed: Sequence[int]) -> None:
        ends = set(ENDS) if is_whole(text, document) else set()
        assert {one for one in allowed if one in ENDS} == ends, text

    written_by(GRAMMARS.json_schema(document).begin(), rambling(seed), see)


def is_whole(text: bytes, schema: dict[str, Any]) -> bool:
    try:
        return fits(json.loads(text), schema)
    except ValueError:
        return False


@pytest.mark.parametrize("seed", range(10))
def test_json_object_is_any_object(seed: int) -> None:
    text = written_by(GRAMMARS.json_object().begin(), rambling(seed))
    assert text is not None
    assert isinstance(json.loads(text), dict)


def test_white_space_comes_to_an_end() -> None:
    blank = [i for i, piece in enumerate(PIECES) if piece and not piece.strip(b" \n\t\r")]
    wanted = [*ENDS, *sorted(blank, key=lambda i: -len(PIECES[i])), PIECES.index(b"}")]

    def choose(allowed: Sequence[int]) -> int:
        return next((one for one in wanted if one in allowed), allowed[0])

    text = written_by(GRAMMARS.json_object().begin(), choose)
    assert text == "{\n" + 24 * " " + "}"


def test_pretty_printed_json_is_allowed() -> None:
    value = {"name": "abc", "of": [1, {"b": None}], "none": []}
    text = json.dumps(value, indent=4).encode()
    constraint = GRAMMARS.json_object().begin()
    written = written_by(constraint, typing([bytes([one]) for one in text]))
    assert written == text.decode()


def typing(pieces: list[bytes]) -> Callable[[Sequence[int]], int]:
    """Return a model that writes these tokens and then ends."""
    left = iter([*map(PIECES.index, pieces), ENDS[0]])
    return lambda allowed: next(left)


def test_a_schema_may_refer_to_itself() -> None:
    node = {
        "type": "object",
        "properties": {"abc": {"$ref": "#/$defs/node"}},
        "additionalProperties": False,
    }
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    for seed in range(5):
        text = written_by(GRAMMARS.json_schema(schema).begin(), rambling(seed))
        assert text is not None
        assert fits(json.loads(text), schema), text
