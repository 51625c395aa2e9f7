"""What JSON schemas mean, for the few keywords that tests use; written from the specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def fits(value: Any, schema: Schema, root: Schema | None = None) -> bool:
    """Tell whether a value fits a schema."""
    root = schema if root is None else root
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    return bool(
        ("type" not in schema or _TYPES[schema["type"]](value))
        and ("enum" not in schema or value in schema["enum"])
        and ("anyOf" not in schema or any(fits(value, one, root) for one in schema["anyOf"]))
        and _string_fits(value, schema)
        and _array_fits(value, schema, root)
        and _object_fits(value, schema, root)
        and _number_fits(value, schema)
    )


def _string_fits(value: Any, schema: Schema) -> bool:
    if not isinstance(value, str):
        return True
    return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))


def _number_fits(value: Any, schema: Schema) -> bool:
    if not isinstance(value, (int, float)):
        return True
    return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))


def _array_fits(value: Any, schema: Schema, root: Schema) -> bool:
    if not isinstance(value, list):
        return True
    is_long = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
    return is_long and all(fits(one, schema.get("items", {}), root) for one in value)


def _object_fits(value: Any, schema: Schema, root: Schema) -> bool:
    if not isinstance(value, dict):
        return True
    known = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    return set(schema.get("required", ())) <= set(value) and all(
        fits(one, known[name], root) if name in known else more is not False
        for name, one in value.items()
    )
