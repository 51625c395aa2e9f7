"""What a last stage is asked to choose and to score, and how it is replied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from worker.backends.base import Sampled, Scored
from worker.protocol.ops import ForwardAndSample, Request, SampledReply, Sampling


def is_scored(request: Request[Any]) -> bool:
    """Say whether tokens are to be scored."""
    return isinstance(request, ForwardAndSample) and bool(request.score_tokens)


def score_fields(scored: Scored) -> dict[str, Any]:
    """Return one of the objects of `scores`."""
    fields: dict[str, Any] = {"logprob": scored.logprob}
    if scored.top_tokens is not None and scored.top_logprobs is not None:
        fields["top_tokens"] = list(scored.top_tokens)
        fields["top_logprobs"] = list(scored.top_logprobs)
    return fields


def num_choices(request: ForwardAndSample) -> int:
    """Return after how many of the last rows a token is to be chosen."""
    if not request.sample:
        return 0
    return request.seq_len if request.sample_steps else 1


def options_of(request: ForwardAndSample, choices: int) -> tuple[Sampling, ...]:
    """Return how to choose after each row: a token that a row brings counts from there on."""
    if request.repetition_penalty == 1 or choices == 1:
        return (request,) * choices
    seen, tokens = request.penalty_tokens or (), request.tokens or ()
    return tuple(
        replace(request, penalty_tokens=(*seen, *tokens[1 : i + 1])) for i in range(choices)
    )


def sampled_reply(sampled: Sampled, batch: int = 1) -> SampledReply:
    """Return the reply to a choice."""
    return SampledReply(
        token_id=sampled.token_ids[0],
        token_ids=sampled.token_ids if batch > 1 else None,
        logprob=sampled.logprob,
        top_tokens=sampled.top_tokens,
        top_logprobs=sampled.top_logprobs,
    )
