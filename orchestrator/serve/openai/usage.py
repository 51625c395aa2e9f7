"""The tokens that a request took."""

from __future__ import annotations

from typing import Any

from orchestrator.serve.openai.delta import Counts, Delta


class Usage:
    """Adds up the tokens of all answers; a prompt that several share counts once.

    Args:
        n: answers to each prompt.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._counts: dict[int, Counts] = {}

    def take(self, delta: Delta) -> None:
        """Hear what an answer took, once it has ended."""
        if delta.counts is not None:
            self._counts[delta.index] = delta.counts

    def body(self) -> dict[str, Any]:
        """Return OpenAI's usage object."""
        firsts = [counts for index, counts in self._counts.items() if index % self._n == 0]
        prompt = sum(counts.prompt for counts in firsts)
        completion = sum(counts.completion for counts in self._counts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(counts.cached for counts in firsts)},
        }
