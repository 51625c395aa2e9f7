"""Earlier calls in a conversation, as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.tool_calls.formats import ToolFormat


def for_template(
    messages: Sequence[Mapping[str, Any]], tool_format: ToolFormat | None
) -> tuple[dict[str, Any], ...]:
    """Return the messages with the arguments of calls decoded, which most templates expect.

    OpenAI's interface has them as JSON text. What is no JSON object stays as it is.

    Args:
        messages: of a conversation, as OpenAI's interface has them.
        tool_format: of the model; None where it is not known.
    """
    if tool_format is not None and tool_format.syntax.marks.takes_text:
        return tuple(dict(message) for message in messages)
    return tuple(_decoded(message) for message in messages)


def _decoded(message: Mapping[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return dict(message)
    return {**message, "tool_calls": [_call(call) for call in message["tool_calls"]]}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return dict(call)
    if not isinstance(arguments, dict):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}
