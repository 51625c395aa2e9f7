"""A whole answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.generate import Finish, TokenOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What was generated, and how it ended.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: of those, how many the stages still held of an earlier request.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    finish: Finish

    @staticmethod
    def of(outputs: Sequence[TokenOutput]) -> Completion:
        """Return the whole of all outputs of a request."""
        finish = outputs[-1].finish
        assert finish is not None, "the last output has it"
        return Completion(
            text="".join(output.text for output in outputs),
            token_ids=tuple(output.token_id for output in outputs),
            prompt_tokens=outputs[-1].prompt_tokens,
            cached_tokens=outputs[-1].cached_tokens,
            finish=finish,
        )
