"""The responses of POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.serve.openai.delta import Delta
from orchestrator.serve.openai.heading import Heading
from orchestrator.serve.openai.logprobs import ChatLogprobs
from orchestrator.serve.openai.token_logprob import TokenLogprob
from orchestrator.tool_calls.pieces import CallArguments, CallBegun

_CHUNK = "chat.completion.chunk"


@dataclass(slots=True)
class _Message:
    """One answer as far as it has come."""

    text: str = ""
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None


class ChatReply:
    """Lays out the answers of a chat; see `Reply`.

    Args:
        heading: of every object.
        n: answers.
        include_usage: whether a stream tells the counts.
        logprobs: lays out log probabilities, where they are asked for.
    """

    def __init__(
        self, heading: Heading, n: int, *, include_usage: bool, logprobs: ChatLogprobs | None
    ) -> None:
        self._heading = heading
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._messages = [_Message() for _ in range(n)]
        self._begun: set[int] = set()

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return what a stream sends for a piece: the role first, the reason of the end last."""
        chunks = []
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            chunks.append(self._chunk(delta.index, {"role": "assistant", "content": ""}))
        said: dict[str, Any] = {}
        if delta.text or (delta.logprobs and not delta.calls):
            said["content"] = delta.text
        if delta.calls:
            said["tool_calls"] = [_call_chunk(call) for call in delta.calls]
        if said:
            chunks.append(self._chunk(delta.index, said, self._told(delta.logprobs)))
        if delta.finish_reason is not None:
            chunks.append(self._chunk(delta.index, {}, finish_reason=delta.finish_reason))
        return chunks

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return what a stream sends last where the counts are asked for."""
        return {**self._heading.of(_CHUNK, []), "usage": usage}

    def take(self, delta: Delta) -> None:
        """Add a piece to the whole."""
        message = self._messages[delta.index]
        message.text += delta.text
        message.logprobs += delta.logprobs
        message.finish_reason = delta.finish_reason or message.finish_reason
        for call in delta.calls:
            if isinstance(call, CallBegun):
                message.calls[call.index] = _call(call.call_id, call.name)
            else:
                message.calls[call.index]["function"]["arguments"] += call.text

    def body(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the whole."""
        choices = [self._choice(index, message) for index, message in enumerate(self._messages)]
        return {**self._heading.of("chat.completion", choices), "usage": usage}

    def _choice(self, index: int, message: _Message) -> dict[str, Any]:
        calls = list(message.calls.values())
        said: dict[str, Any] = {
            "role": "assistant",
            "content": message.text or (None if calls else ""),
            "refusal": None,
        }
        if calls:
            said["tool_calls"] = calls
        return {
            "index": index,
            "message": said,
            "logprobs": self._told(message.logprobs),
            "finish_reason": message.finish_reason,
        }

    def _told(self, tokens: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> dict[str, Any] | None:
        return None if self._logprobs is None else self._logprobs.of(tokens)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = self._heading.of(_CHUNK, [choice])
        return {**chunk, "usage": None} if self._include_usage else chunk


def _call(call_id: str, name: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}


def _call_chunk(call: CallBegun | CallArguments) -> dict[str, Any]:
    if isinstance(call, CallBegun):
        return {"index": call.index, **_call(call.call_id, call.name)}
    return {"index": call.index, "function": {"arguments": call.text}}
