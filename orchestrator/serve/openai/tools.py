"""The tools of a chat, and whether the model may, must or must not call one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from orchestrator.serve.errors import refusal
from orchestrator.serve.openai.fields import Fields
from orchestrator.tool_calls.call import is_object_schema

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What may be called.

    Attributes:
        shown: the tools as the chat template takes them.
        choice: "auto", "required", or `{"type": "function", "function": {"name": …}}` as it came.
        parallel: whether one answer may call several times.
    """

    shown: tuple[dict[str, Any], ...]
    choice: str | dict[str, Any]
    parallel: bool

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call."""
        return self.choice != "auto"


def read_tools(fields: Fields) -> Tools | None:
    """Take the tools; None where there are none, or none may be called.

    Raises:
        ApiError: one is not what it must be.
    """
    fields.only("functions", [], "it is of an older interface; use 'tools'")
    fields.only("function_call", [], "it is of an older interface; use 'tool_choice'")
    values = fields.list("tools") or []
    read = [_tool(fields, index, value) for index, value in enumerate(values)]
    shown = tuple(tool for tool, _ in read)
    choice = _choice(fields, [tool["function"]["name"] for tool in shown])
    parallel = fields.flag("parallel_tool_calls", True)
    if not shown or choice == "none":
        return None
    tools = Tools(shown=shown, choice=choice, parallel=parallel)
    for index, (_, is_strict) in enumerate(read):
        if is_strict and not tools.must_call:
            raise refusal(
                f"tools[{index}].function.strict",
                f"'tools[{index}].function.strict' is true, which is only served where "
                "'tool_choice' asks for a call: set that, or leave 'strict' away",
                code="unsupported_value",
            )
    return tools


def _tool(fields: Fields, index: int, value: object) -> tuple[dict[str, Any], bool]:
    path = f"tools[{index}]"
    if not isinstance(value, dict):
        raise fields.refused(path, value, "an object with 'type' and 'function'")
    own = Fields(value, path)
    own.word("type", ("function",))
    function = own.object("function")
    if function is None:
        raise own.refused("function", None, "an object with 'name' and 'parameters'")
    own.end()
    told = Fields(function, own.name("function"))
    name = told.needed_text("name")
    if not _NAME.fullmatch(name):
        raise told.refused("name", name, "at most 64 letters, digits, '_' and '-'")
    shown: dict[str, Any] = {"name": name}
    if (description := told.text("description")) is not None:
        shown["description"] = description
    if (parameters := told.object("parameters")) is not None:
        if not is_object_schema(parameters):
            raise told.refused("parameters", parameters, 'an object schema ("type": "object")')
        shown["parameters"] = parameters
    is_strict = told.flag("strict")
    told.end()
    return {"type": "function", "function": shown}, is_strict


def _choice(fields: Fields, names: list[str]) -> str | dict[str, Any]:
    value = fields.take("tool_choice")
    if value is None:
        return "auto"
    if isinstance(value, str):
        if value not in _CHOICES:
            expects = "'none', 'auto', 'required' or an object that names a function"
            raise fields.refused("tool_choice", value, expects)
        if value != "none" and not names:
            raise refusal("tool_choice", f"'tool_choice' is '{value}', but 'tools' has none")
        return value
    if not isinstance(value, dict):
        raise fields.refused("tool_choice", value, "a string or an object")
    own = Fields(value, "tool_choice")
    own.word("type", ("function",))
    called = Fields(own.object("function") or {}, "tool_choice.function")
    name = called.needed_text("name")
    called.end()
    own.end()
    if name not in names:
        raise refusal(
            "tool_choice.function.name",
            f"'tool_choice.function.name' is '{name:.80}', but no tool of 'tools' has that name",
        )
    return {"type": "function", "function": {"name": name}}
