"""A schema that takes for ever, or cannot be followed, is a refusal and no hang."""

from __future__ import annotations

import time
from typing import Any

import pytest

from orchestrator.grammar.grammars import Grammars
from orchestrator.grammar.refused import GrammarRefused
from tests.support.small_vocabulary import ENDS, VOCABULARY

ENDLESS: dict[str, Any] = {
    "type": "string",
    "allOf": [{"pattern": "a.{1,200}b.{%d}c" % i} for i in range(30)],  # noqa: UP031 - braces
}
MANY_WAYS: dict[str, Any] = {
    "type": "object",
    "properties": {f"p{i}": {"type": "string", "pattern": "^[a-z]{1,500}$"} for i in range(3000)},
}


@pytest.mark.parametrize("schema", [ENDLESS, MANY_WAYS], ids=["endless", "many-ways"])
def test_a_schema_that_costs_too_much_is_refused_in_bounded_time(schema: dict[str, Any]) -> None:
    begun_s = time.monotonic()
    with pytest.raises(GrammarRefused, match="the JSON schema is too complex"):
        Grammars(VOCABULARY, ENDS).json_schema(schema)
    assert time.monotonic() - begun_s < 60


def test_what_is_refused_leaves_the_next_schema_as_it_is() -> None:
    grammars = Grammars(VOCABULARY, ENDS)
    with pytest.raises(GrammarRefused):
        grammars.json_schema(ENDLESS)
    assert grammars.json_schema({"type": "boolean"}).begin().allowed() is not None
