"""The calls of Qwen3-Coder, written as tags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.grammar.grammars import json_rule
from orchestrator.tool_calls.call import Call, Function, made_call
from orchestrator.tool_calls.cursor import Cursor
from orchestrator.tool_calls.syntax import Literal, Marks, choice

_OPENER, _CLOSER = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenCoderCalls:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

    Values are plain text; the schema of the function tells which of them are strings. See
    `Syntax`.
    """

    @property
    def marks(self) -> Marks:
        """What shows where calls are."""
        return Marks(name="qwen-coder", openers=(_OPENER, _FUNCTION))

    def read(self, cursor: Cursor, opener: str, functions: Sequence[Function]) -> list[Call]:
        """Return the call behind an opener."""
        if opener == _OPENER:
            cursor.space()
            cursor.expect(_FUNCTION)
        name = cursor.until(">").strip()
        known = [one.properties for one in functions if one.name == name]
        properties = known[0] if known else {}
        arguments: dict[str, Any] = {}
        cursor.space()
        while not cursor.has(_FUNCTION_END):
            cursor.expect(_PARAMETER)
            key = cursor.until(">").strip()
            text = cursor.until(_PARAMETER_END).removeprefix("\n").removesuffix("\n")
            arguments[key] = _value(text, properties.get(key, {}))
            cursor.space()
        # Some models leave the opening tag away and write the closing one.
        cursor.closing(_CLOSER)
        return [made_call(name, arguments)]

    def forced(self, functions: Sequence[Function], literal: Literal, *, several: bool) -> str:
        """Return the grammar of an answer that calls."""
        begin, end = f'{literal(_OPENER)} "\\n"', f'"\\n" {literal(_CLOSER)}'
        lines = [
            'start: call ("\\n" call)*' if several else "start: call",
            f"call: {begin} body {end}",
            f"body: {choice(functions)}",
            f"text[suffix={json.dumps(chr(10) + _PARAMETER_END + chr(10))}]: /(.|\\n)*/",
        ]
        for i, one in enumerate(functions):
            parts = []
            for j, (key, schema) in enumerate(one.properties.items()):
                parts.append(f"p{i}_{j}" if key in one.required else f"p{i}_{j}?")
                lines.append(f"p{i}_{j}: {_parameter(key, schema, one.parameters)}")
            head = json.dumps(f"{_FUNCTION}{one.name}>\n")
            lines.append(f"f{i}: {' '.join([head, *parts, json.dumps(_FUNCTION_END)])}")
        return "\n".join(lines)


def _parameter(key: str, schema: dict[str, Any], parameters: dict[str, Any]) -> str:
    head = json.dumps(f"{_PARAMETER}{key}>\n", ensure_ascii=False)
    if schema.get("type") == "string" and "enum" not in schema:
        return f"{head} text"
    # References look from the root of the schema of all parameters.
    roots: dict[str, Any] = {
        name: parameters[name] for name in ("$defs", "definitions") if name in parameters
    }
    value = _words(schema["enum"]) if _is_words(schema.get("enum")) else None
    value = value or json_rule({**roots, **schema})
    return f"{head} {value} {json.dumps(chr(10) + _PARAMETER_END + chr(10))}"


def _is_words(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(one, str) and one for one in values)


def _words(values: list[str]) -> str:
    return f"({' | '.join(json.dumps(one, ensure_ascii=False) for one in values)})"


def _value(text: str, schema: dict[str, Any]) -> object:
    """Return what a value stands for: JSON, unless the schema says that it is a string."""
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "string" in kinds or _is_words(schema.get("enum")):
        return None if text == "null" and "null" in kinds else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
