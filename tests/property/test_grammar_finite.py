"""No answer is held to what never ends, and nothing that a value fits is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.grammar.finite import finite
from orchestrator.grammar.grammars import Grammars
from orchestrator.grammar.refused import GrammarRefused
from tests.support.small_vocabulary import ENDS, PIECES, VOCABULARY, written_by

Schema = Any
NAMES = ("a", "b")
DEFINED = ("m", "n")
SCALARS: tuple[Any, ...] = (None, True, 1, "")


def fits(value: Any, schema: Schema, root: Schema, followed: frozenset[str] = frozenset()) -> bool:
    """Tell whether a value fits; what only refers to itself fits nothing."""
    if isinstance(schema, bool):
        return schema
    if (ref := schema.get("$ref")) is not None:
        target = root if ref == "#" else root["$defs"][ref.removeprefix("#/$defs/")]
        if ref in followed or not fits(value, target, root, followed | {ref}):
            return False
    return (
        _kind(value) in schema.get("type", _kind(value))
        and all(fits(value, one, root, followed) for one in schema.get("allOf", ()))
        and any(fits(value, one, root, followed) for one in schema.get("anyOf", (True,)))
        and _children_fit(value, schema, root)
    )


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _children_fit(value: Any, schema: Schema, root: Schema) -> bool:
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        rest = itertools.repeat(schema.get("items", True), max(0, len(value) - len(first)))
        children = zip(value, [*first[: len(value)], *rest], strict=True)
        return len(value) >= schema.get("minItems", 0) and all(
            fits(one, of, root) for one, of in children
        )
    if isinstance(value, dict):
        named, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        return set(schema.get("required", ())) <= set(value) and all(
            fits(one, named.get(name, more), root) for name, one in value.items()
        )
    return True


def schemas_in(schema: Schema) -> Iterator[Schema]:
    """Yield every part that is a schema."""
    yield schema
    if isinstance(schema, dict):
        for word in ("properties", "$defs"):
            for one in schema.get(word, {}).values():
                yield from schemas_in(one)
        for word in ("allOf", "anyOf", "prefixItems"):
            for one in schema.get(word, ()):
                yield from schemas_in(one)
        for word in ("items", "additionalProperties"):
            yield from schemas_in(schema.get(word, True))


def values_for(root: Schema) -> list[Any]:
    """Return values of which one fits wherever any does.

    Whether a list or an object fits depends only on which schemas what is in it fits. So of all
    values that fit the same ones, one is as good as each other.
    """
    parts = list(schemas_in(root))
    found: dict[tuple[Any, ...], Any] = {}
    fresh: list[Any] = list(SCALARS)
    while fresh:
        new = {}
        for value in fresh:
            key = (_kind(value), *(fits(value, one, root) for one in parts))
            if key not in found:
                new[key] = value
        found |= new
        fresh = list(composed(list(found.values()))) if new else []
    return list(found.values())


def composed(values: Sequence[Any]) -> Iterator[Any]:
    for count in range(3):
        yield from map(list, itertools.product(values, repeat=count))
        for names in itertools.combinations(NAMES, count):
            for of in itertools.product(values, repeat=count):
                yield dict(zip(names, of, strict=True))


def refs() -> st.SearchStrategy[Schema]:
    return st.sampled_from(["#", *(f"#/$defs/{name}" for name in DEFINED)]).map(
        lambda ref: {"$ref": ref}
    )


def nested(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    objects = st.fixed_dictionaries(
        {"type": st.sampled_from([["object"], ["object", "null"]])},
        optional={
            "properties": st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=2),
            "required": st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True),
            "additionalProperties": inner,
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just(["array"]), "minItems": st.integers(0, 2)},
        optional={"items": inner, "prefixItems": st.lists(inner, min_size=1, max_size=2)},
    )
    several = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        objects,
        objects,
        arrays,
        several.map(lambda of: {"anyOf": of}),
        several.map(lambda of: {"allOf": of}),
    )


LEAVES = st.one_of(refs(), refs(), st.sampled_from([{"type": ["string"]}, False, True]))
PARTS = st.recursive(LEAVES, nested, max_leaves=3)
ROOTS = st.builds(
    lambda part, defined: {
        **part,
        "$defs": defined,
    },
    PARTS.filter(lambda part: isinstance(part, dict)),
    st.fixed_dictionaries(dict.fromkeys(DEFINED, PARTS)),
)
NEEDED = {"type": ["object"], "required": ["a"]}
FOR_EVER = {**NEEDED, "properties": {"a": {"$ref": "#/$defs/n"}}}


def without_end(of: Schema, **defined: Schema) -> Schema:
    return {**of, "$defs": {"m": True, "n": FOR_EVER, **defined}}


@given(ROOTS)
@example(without_end({"$ref": "#/$defs/n"}))
@example(without_end({"anyOf": [{"$ref": "#/$defs/n"}, {"type": ["null"]}]}))
@example(
    without_end(
        {"$ref": "#/$defs/n"},
        m={"type": ["object"], "properties": {"a": {"$ref": "#/$defs/n"}}},
        n={"allOf": [{"$ref": "#/$defs/m"}, NEEDED]},
    )
)
@settings(max_examples=60, deadline=None)
def test_a_schema_is_refused_only_where_no_value_fits_it_and_else_keeps_its_values(
    schema: Schema,
) -> None:
    values = values_for(schema)
    fitting = [fits(value, schema, schema) for value in values]
    try:
        kept = finite(schema)
    except GrammarRefused:
        assert not any(fitting)
        return
    assert [fits(value, kept, kept) for value in values] == fitting


@given(ROOTS)
@settings(max_examples=60, deadline=None)
def test_a_reference_stays_only_where_a_value_fits_it(schema: Schema) -> None:
    try:
        kept = finite(schema)
    except GrammarRefused:
        return
    values = values_for(kept)
    stayed = [one for one in schemas_in(kept) if isinstance(one, dict) and "$ref" in one]
    for one in stayed:
        target = {"$ref": one["$ref"]}
        assert any(fits(value, target, kept) for value in values), target


GRAMMARS = Grammars(VOCABULARY, ENDS)
OPENING = [PIECES.index(one) for one in (b'"', b"[", b"{")]


def test_an_answer_does_not_go_where_it_could_not_end() -> None:
    schema = without_end(
        {
            "type": ["object"],
            "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/m"}},
            "required": ["b"],
            "additionalProperties": False,
        },
        m={"type": ["array"], "items": {"$ref": "#/$defs/n"}},
    )

    def choose(allowed: Sequence[int]) -> int:
        return next((one for one in OPENING if one in allowed), allowed[-1])

    text = written_by(GRAMMARS.json_schema(schema).begin(), choose)
    assert text is not None
    assert json.loads(text) == {"b": []}
