"""Chat messages as they come over the wire, checked and brought into the form of chat templates."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from worker.protocol.schema import ErrorCode, ProtocolError

# Some templates build their markers from the role, so a role must not be able to hold one.
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def chat_messages(
    messages: Sequence[Mapping[str, Any]], *, keep_parts: bool = False
) -> list[dict[str, Any]]:
    """Return messages as a chat template takes them.

    Text parts become one string, and the arguments of tool calls, which OpenAI's interface has as
    JSON text, become the object that they spell.

    Args:
        messages: as OpenAI's interface has them; other fields are passed on as they are.
        keep_parts: whether the template takes a list of parts itself.

    Raises:
        ProtocolError: `bad_field`: none are given, or one is not of this form.
    """
    if not messages:
        raise _bad("'messages' is empty; send at least one message")
    return [
        _message(message, f"'messages'[{index}]", keep_parts)
        for index, message in enumerate(messages)
    ]


def check_unicode(value: Any, where: str) -> None:
    """Refuse half surrogate pairs anywhere in a value: no tokenizer can encode them.

    Raises:
        ProtocolError: `bad_field`, naming `where`.
    """
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _bad(
                f"{where} must be valid Unicode; character {error.start} is half of a surrogate "
                "pair"
            ) from None
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            check_unicode(key, where)
            check_unicode(inner, where)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_unicode(inner, where)


def _message(message: Mapping[str, Any], where: str, keep_parts: bool) -> dict[str, Any]:
    role = message.get("role")
    if not (isinstance(role, str) and _ROLE.fullmatch(role)):
        raise _bad(
            f"{where} has role {role!r:.80}, it must be a word such as 'user', 'assistant' or "
            "'system'"
        )
    check_unicode(message, where)
    made = dict(message)
    content = message.get("content")
    if not isinstance(content, str | list | None):
        raise _bad(f"{where} must have a 'content' that is a string or a list of parts")
    if isinstance(content, list):
        joined = "".join(_text(part, where) for part in content)
        made["content"] = content if keep_parts else joined
    if message.get("tool_calls") is not None:
        made["tool_calls"] = _tool_calls(message["tool_calls"], where)
    return made


def _text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise _bad(
            f"{where} has a part of type {kind!r:.80}; this model takes parts of type 'text' alone"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise _bad(f"{where} has a part of type 'text' whose 'text' is no string")
    return text


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise _bad(f"{where} must have 'tool_calls' that are a list of objects")
    return [_tool_call(call, f"{where}['tool_calls'][{i}]") for i, call in enumerate(calls)]


def _tool_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _bad(f"{where} must have a 'function' that is an object with a 'name'")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        check_unicode(arguments, where)  # Escapes may spell what the text itself does not hold.
    if not isinstance(arguments, Mapping):
        raise _bad(
            f"{where} has 'arguments' {function.get('arguments')!r:.80}; they must be a JSON "
            "object, as text or as it is"
        )
    return {**call, "function": {**function, "arguments": dict(arguments)}}


def _bad(text: str) -> ProtocolError:
    return ProtocolError(ErrorCode.BAD_FIELD, text)
