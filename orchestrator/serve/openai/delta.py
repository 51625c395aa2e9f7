"""What comes of one answer at a time, whoever asked for it and however it is sent."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.serve.openai.token_logprob import TokenLogprob
from orchestrator.tool_calls.pieces import CallArguments, CallBegun


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tokens of one answer.

    Attributes:
        prompt: of its prompt.
        completion: that were generated, the end-of-text token included.
        cached: of the prompt, how many the stages still held.
    """

    prompt: int
    completion: int
    cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of one answer.

    Attributes:
        index: which answer.
        text: what it goes on with.
        calls: the tool calls that begin or go on with it.
        logprobs: of the tokens whose text has been shown by now.
        finish_reason: OpenAI's word for how the answer ended; in its last piece only.
        counts: in the last piece only.
    """

    index: int
    text: str = ""
    calls: tuple[CallBegun | CallArguments, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    counts: Counts | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not (self.text or self.calls or self.logprobs or self.finish_reason)
