"""Hypothesis strategies for every message, derived from the rules of its fields."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from hypothesis import strategies as st

from worker.protocol import schema
from worker.protocol.schema import ProtocolError, Rule, parse, rules_of

Values = dict[str, Any]

_INTS = st.integers(min_value=0, max_value=2**70)
_NUMBERS = st.floats(-1e308, 1e308) | st.integers(-(2**60), 2**60)
_OBJECTS = st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.integers(), max_size=3)

# By the sentence a rule completes: what is said to be accepted is what is generated.
_BY_EXPECTS: dict[str, st.SearchStrategy[Any]] = {
    schema.REQUEST_ID.expects: st.none() | st.integers() | st.text(max_size=256),
    schema.FLAG.expects: st.booleans(),
    schema.NON_NEGATIVE.expects: _INTS,
    schema.POSITIVE.expects: st.integers(1, 4) | st.integers(min_value=1, max_value=2**70),
    schema.INTEGER.expects: st.integers(),
    schema.TICKET.expects: st.integers(0, 2**63 - 1),
    schema.PORT.expects: st.integers(1, 65535),
    schema.LINK_TOKEN.expects: st.from_regex("[0-9a-f]{64}", fullmatch=True),
    schema.NUMBER.expects: _NUMBERS,
    schema.NON_NEGATIVE_NUMBER.expects: _NUMBERS.map(abs),
    schema.POSITIVE_NUMBER.expects: _NUMBERS.map(abs).filter(lambda v: v > 0),
    schema.FRACTION.expects: st.floats(0, 1),
    schema.TOKENS.expects: st.lists(_INTS, max_size=6),
    schema.TEXTS.expects: st.lists(st.text(), max_size=3),
    schema.NUMBERS.expects: st.lists(_NUMBERS, max_size=3),
    schema.SHAPE.expects: st.lists(st.integers(1, 99), min_size=1, max_size=4),
    schema.OBJECT.expects: _OBJECTS,
    schema.VARIABLES.expects: st.dictionaries(
        st.from_regex(r"HF_[A-Z]{1,3}", fullmatch=True), st.text(), max_size=3
    ),
    schema.OBJECTS.expects: st.lists(_OBJECTS, max_size=3),
}
_BASE64 = st.binary(max_size=64).map(lambda data: base64.b64encode(data).decode("ascii"))


def values_of(rule: Rule) -> st.SearchStrategy[Any]:
    """Return JSON values that the rule accepts and has no complaint about."""
    if rule.accepts is schema.BASE64.accepts:
        found: st.SearchStrategy[Any] = _BASE64
    elif rule.expects == schema.TEXT.expects:
        found = st.text()
    elif rule.expects.startswith("one of "):
        found = st.sampled_from(re.findall(r"'([^']*)'", rule.expects))
    else:
        found = _BY_EXPECTS[rule.expects]
    return found.filter(lambda value: rule.accepts(value) and rule.check(value) is None)


def fields_of(message: type[Any]) -> st.SearchStrategy[Values]:
    """Return JSON objects that are valid for a message class; optional fields may be absent."""
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for field, rule in rules_of(message):
        is_optional = isinstance(field.default, (int, float, str, bool, tuple, type(None)))
        (optional if is_optional else required)[field.name] = values_of(rule)

    def is_consistent(values: Values) -> bool:
        try:
            parse(message, values)
        except ProtocolError:
            return False  # Fields that are right alone and wrong together.
        return True

    return st.fixed_dictionaries(required, optional=optional).filter(is_consistent)


def junk_lines() -> st.SearchStrategy[bytes]:
    """Return lines that a worker must answer with one error: junk, and almost right requests."""
    scalar = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    any_json = st.recursive(
        scalar,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
        max_leaves=6,
    )
    names = st.sampled_from(["forward_range", "ping", "tokenize", "detokenize", "nope", ""])
    keys = st.sampled_from(["request_id", "tokens", "position", "seq_len", "hidden_b64", "prompt"])
    almost = st.builds(
        lambda op, more: {**more, "op": op}, names | any_json, st.dictionaries(keys, any_json)
    )
    return st.binary(min_size=1, max_size=60) | (any_json | almost).map(
        lambda value: json.dumps(value).encode("ascii")
    )
