"""What a request that was understood leads to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.serve.openai.choice import Choice
from orchestrator.serve.openai.reply import Reply
from orchestrator.serve.openai.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answers to one request, and how they are sent.

    Attributes:
        choices: in the order of the response.
        reply: lays their pieces out.
        usage: counts their tokens.
        stream: whether they are sent as they come.
        include_usage: whether a stream ends with its counts.
    """

    choices: Sequence[Choice]
    reply: Reply
    usage: Usage
    stream: bool
    include_usage: bool
