"""The messages of a chat as the chat template takes them."""

from __future__ import annotations

from typing import Any

from orchestrator.serve.errors import refusal
from orchestrator.serve.openai.fields import Fields, lacking

_ROLES = ("system", "developer", "user", "assistant", "tool")


def read_messages(fields: Fields) -> tuple[dict[str, Any], ...]:
    """Take the messages; texts and tool calls are served, other parts are refused by name.

    The role `developer` is given to the template as `system`, which it is called there.

    Raises:
        ApiError: there are none, or one is not what it must be.
    """
    values = fields.list("messages")
    if not values:
        raise refusal("messages", f"'messages' is {lacking(values)}; send at least one message")
    return tuple(_message(fields, index, value) for index, value in enumerate(values))


def _message(fields: Fields, index: int, value: object) -> dict[str, Any]:
    path = f"messages[{index}]"
    if not isinstance(value, dict):
        raise fields.refused(path, value, "an object with 'role' and 'content'")
    own = Fields(value, path)
    role = own.word("role", _ROLES)
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = _tool_calls(own) if role == "assistant" else None
    message["content"] = _content(own, may_lack=calls is not None)
    if calls is not None:
        message["tool_calls"] = calls
    if role == "tool":
        message["tool_call_id"] = own.needed_text("tool_call_id")
    if (name := own.text("name")) is not None:
        message["name"] = name
    if role == "assistant":
        _refuse_unserved(own)
    own.end()
    return message


def _refuse_unserved(own: Fields) -> None:
    own.only("refusal", [], "no model here refuses apart from its text")
    own.only("audio", [], "this server has text only")
    own.only("annotations", [[]], "this server has none")
    own.only("function_call", [], "it is of an older interface; use 'tool_calls'")


def _content(own: Fields, *, may_lack: bool) -> str | list[dict[str, Any]] | None:
    value = own.take("content")
    if isinstance(value, str):
        return value
    if value is None and may_lack:
        return None
    if not isinstance(value, list) or not value:
        raise own.refused("content", value, "a string or a list of text parts")
    return [_part(own, index, part) for index, part in enumerate(value)]


def _part(own: Fields, index: int, value: object) -> dict[str, Any]:
    field = f"content[{index}]"
    if not isinstance(value, dict):
        raise own.refused(field, value, "an object with 'type' and 'text'")
    part = Fields(value, own.name(field))
    kind = part.text("type")
    if kind != "text":
        name = part.name("type")
        raise refusal(name, f"'{name}' is '{kind or ''}', but this server takes 'text' parts only")
    text = part.text("text")
    if text is None:
        raise part.refused("text", None, "a string")
    part.end()
    return {"type": "text", "text": text}


def _tool_calls(own: Fields) -> list[dict[str, Any]] | None:
    values = own.list("tool_calls")
    if not values:
        return None
    return [_tool_call(own, index, value) for index, value in enumerate(values)]


def _tool_call(own: Fields, index: int, value: object) -> dict[str, Any]:
    field = f"tool_calls[{index}]"
    if not isinstance(value, dict):
        raise own.refused(field, value, "an object with 'id', 'type' and 'function'")
    call = Fields(value, own.name(field))
    call_id = call.needed_text("id")
    call.word("type", ("function",), "function")
    function = call.object("function")
    if function is None:
        raise call.refused("function", None, "an object with 'name' and 'arguments'")
    called = Fields(function, call.name("function"))
    name, arguments = called.needed_text("name"), called.text("arguments") or "{}"
    called.end()
    call.end()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
