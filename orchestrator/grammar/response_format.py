"""OpenAI's `response_format`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.grammar.grammar import Grammar
from orchestrator.grammar.grammars import Grammars
from orchestrator.grammar.refused import GrammarRefused

_FIELDS = {
    "text": {"type"},
    "json_object": {"type"},
    "json_schema": {"type", "json_schema"},
}
_SCHEMA_FIELDS = {"name", "description", "schema", "strict"}


def grammar_of(response_format: Mapping[str, Any] | None, grammars: Grammars) -> Grammar | None:
    """Return what an answer must be; None where it is free.

    A schema holds whether it is `strict` or not.

    Args:
        response_format: `{"type": "text"}`, `{"type": "json_object"}` or `{"type":
            "json_schema", "json_schema": {"name": …, "schema": {…}}}`.
        grammars: of the model.

    Raises:
        GrammarRefused: it is none of these, or the schema cannot be held to.
    """
    if response_format is None:
        return None
    kind = response_format.get("type")
    if kind not in _FIELDS:
        raise GrammarRefused(
            f"response_format.type is {kind!r:.80}, and it must be one of {', '.join(_FIELDS)}"
        )
    _refuse_more("response_format", response_format, _FIELDS[kind])
    if kind == "text":
        return None
    if kind == "json_object":
        return grammars.json_object()
    return grammars.json_schema(_schema(response_format.get("json_schema")))


def _schema(described: object) -> dict[str, Any]:
    where = "response_format.json_schema"
    if not isinstance(described, Mapping):
        raise GrammarRefused(
            f"{where} is {described!r:.80}, and it must be an object with 'name' and 'schema'"
        )
    _refuse_more(where, described, _SCHEMA_FIELDS)
    schema = described.get("schema")
    if schema is None:
        return {"type": "object"}
    if not isinstance(schema, dict):
        raise GrammarRefused(f"{where}.schema is {schema!r:.80}, and it must be an object")
    return schema


def _refuse_more(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    if more := sorted(set(given) - known):
        raise GrammarRefused(
            f"{where} has the field {more[0]!r:.80}, which is not known; leave it away"
        )
