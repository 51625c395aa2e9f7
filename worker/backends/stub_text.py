"""The stub's tokenizer and chat template, as protocol.md's stub chapter fixes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from worker.backends.base import TokenBytes
from worker.chat import chat_messages


def encode(text: str) -> list[int]:
    """Return for word i of the text its code points' sum mod 1024, plus i."""
    return [sum(map(ord, word)) % 1024 + i for i, word in enumerate(text.split())]


def rendered(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    template_options: Mapping[str, Any] | None,
) -> str:
    """Return a chat as text: options, tools, then what each message holds, joined by spaces.

    Raises:
        ProtocolError: `bad_field`: a message is not of the form that chat templates take.
    """
    pieces = [_json(given) for given in (template_options, tools) if given]
    for message in chat_messages(messages):
        pieces.append(message.get("content") or "")
        pieces += [_json(call) for call in message.get("tool_calls") or ()]
    return " ".join(pieces)


def decode(tokens: Sequence[int]) -> str:
    """Return the ids in decimal, joined by one space."""
    return " ".join(map(str, tokens))


def token_bytes(vocab_size: int) -> TokenBytes:
    """Return what `decode` writes for each id after another one."""
    return TokenBytes(pieces=[b" %d" % token for token in range(vocab_size)])


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
