"""The responses of POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.serve.openai.delta import Delta
from orchestrator.serve.openai.heading import Heading
from orchestrator.serve.openai.logprobs import TextLogprobs
from orchestrator.serve.openai.token_logprob import TokenLogprob
from orchestrator.vocabulary import Vocabulary

_OBJECT = "text_completion"


@dataclass(slots=True)
class _Text:
    """One answer as far as it has come."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None


class CompletionReply:
    """Lays out the answers of a plain completion; see `Reply`.

    Args:
        heading: of every object.
        choices: answers over all prompts.
        include_usage: whether a stream tells the counts.
        vocabulary: names tokens, where log probabilities are asked for.
    """

    def __init__(
        self, heading: Heading, choices: int, *, include_usage: bool, vocabulary: Vocabulary | None
    ) -> None:
        self._heading = heading
        self._include_usage = include_usage
        self._texts = [_Text() for _ in range(choices)]
        self._logprobs = (
            None if vocabulary is None else [TextLogprobs(vocabulary) for _ in range(choices)]
        )

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return what a stream sends for a piece."""
        told = self._told(delta.index, delta.logprobs)
        choice = _choice(delta.index, delta.text, told, delta.finish_reason)
        chunk = self._heading.of(_OBJECT, [choice])
        return [{**chunk, "usage": None} if self._include_usage else chunk]

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return what a stream sends last where the counts are asked for."""
        return {**self._heading.of(_OBJECT, []), "usage": usage}

    def take(self, delta: Delta) -> None:
        """Add a piece to the whole."""
        whole = self._texts[delta.index]
        whole.text += delta.text
        whole.logprobs += delta.logprobs
        whole.finish_reason = delta.finish_reason or whole.finish_reason

    def body(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the whole."""
        choices = [
            _choice(index, whole.text, self._told(index, whole.logprobs), whole.finish_reason)
            for index, whole in enumerate(self._texts)
        ]
        return {**self._heading.of(_OBJECT, choices), "usage": usage}

    def _told(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return None if self._logprobs is None else self._logprobs[index].of(tokens)


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
