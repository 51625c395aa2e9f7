"""One call as a model wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from orchestrator.tool_calls.cursor import NoCall

_NO_PARAMETERS: Mapping[str, Any] = MappingProxyType(
    {"properties": {}, "additionalProperties": False}
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call.

    Attributes:
        name: of the function.
        arguments: JSON text of one object.
    """

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called.

    Attributes:
        name: of the function.
        parameters: JSON schema of the object with its arguments.
    """

    name: str
    parameters: dict[str, Any]

    @property
    def properties(self) -> dict[str, dict[str, Any]]:
        """The schema of each argument; `{}` where it is anything."""
        given = self.parameters.get("properties")
        named = given.items() if isinstance(given, dict) else ()
        return {key: one if isinstance(one, dict) else {} for key, one in named}

    @property
    def required(self) -> frozenset[str]:
        """Names of the arguments that must be given."""
        given = self.parameters.get("required")
        return (
            frozenset(one for one in given if isinstance(one, str))
            if isinstance(given, list)
            else frozenset()
        )


def is_object_schema(parameters: Mapping[str, Any]) -> bool:
    """Tell whether a schema is one of an object, as that of a function's parameters has to be."""
    # Where it says nothing of that, an object is meant.
    return parameters.get("type", "object") in ("object", ["object"])


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[Function]:
    """Return the functions among tools as OpenAI's interface has them."""
    functions = [tool["function"] for tool in tools]
    return [
        # No parameters at all are OpenAI's word for a function without any.
        Function(one["name"], {"type": "object", **(one.get("parameters") or _NO_PARAMETERS)})
        for one in functions
    ]


def call_of(value: object, arguments: str = "arguments") -> Call:
    """Return the call that an object `{"name": …, "arguments": {…}}` is.

    Args:
        value: decoded JSON.
        arguments: what the model calls the field.

    Raises:
        NoCall: it is none.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise NoCall
    return made_call(value["name"], value.get(arguments))


def made_call(name: str, arguments: object) -> Call:
    """Return a call with decoded arguments; text is decoded first, and none are `{}`.

    Raises:
        NoCall: the arguments are no object, or there is no name.
    """
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        if given is None:
            given = {}
        if not name or not isinstance(given, dict):
            raise NoCall
        # Half of a surrogate pair cannot be sent as UTF-8; escaped it can.
        text = json.dumps(given, ensure_ascii=False, allow_nan=False)
        if not text.isascii() and text.encode(errors="replace").decode() != text:
            text = json.dumps(given)
        name.encode()
    except (ValueError, RecursionError):
        raise NoCall from None
    return Call(name, text)
