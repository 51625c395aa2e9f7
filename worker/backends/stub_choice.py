"""How the stub chooses and scores tokens, as protocol.md's stub chapter fixes it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from worker.backends.base import RULED_OUT, Sampled, Scored
from worker.protocol.ops import Sampling
from worker.protocol.payload import decode_base64
from worker.protocol.schema import ErrorCode, ProtocolError

VOCAB_SIZE = 32


def choose(favourites: Sequence[int], options: Sampling) -> Sampled:
    """Return for each sequence the likeliest token that the options allow; the lowest of equals.

    Args:
        favourites: the likeliest token of each sequence; the t-th token after it, counted round
            the vocabulary, has the logit -t.
        options: bias, suppressed and allowed tokens and log probabilities count, no others.

    Raises:
        ProtocolError: `bad_field`: no token is left, or a bitmap is no base64.
    """
    chosen = tuple(favourites)
    if options.bias_tokens or options.suppress_tokens or options.allowed_b64 is not None:
        chosen = tuple(_likeliest(favourite, options) for favourite in favourites)
    if not (options.logprobs or options.top_logprobs):
        return Sampled(token_ids=chosen)
    scored = score(favourites[0], chosen[0], options.top_logprobs)
    return Sampled(
        token_ids=chosen,
        logprob=scored.logprob,
        top_tokens=scored.top_tokens,
        top_logprobs=scored.top_logprobs,
    )


def score(favourite: int, token: int, top_logprobs: int) -> Scored:
    """Tell how likely a token is; one past the vocabulary, as the stub's own tokenizer makes, not.

    Args:
        favourite: see `choose`.
        token: any id.
        top_logprobs: how many of the likeliest to name.
    """
    logits = _logits(favourite)
    total = math.log(sum(math.exp(logit) for logit in logits))
    logprobs = [logit - total for logit in logits]
    logprob = logprobs[token] if token < VOCAB_SIZE else RULED_OUT
    if not top_logprobs:
        return Scored(logprob=logprob)
    top = tuple((favourite + i) % VOCAB_SIZE for i in range(min(top_logprobs, VOCAB_SIZE)))
    return Scored(
        logprob=logprob, top_tokens=top, top_logprobs=tuple(logprobs[token] for token in top)
    )


def _logits(favourite: int) -> list[float]:
    return [-float((token - favourite) % VOCAB_SIZE) for token in range(VOCAB_SIZE)]


def _likeliest(favourite: int, options: Sampling) -> int:
    scores = dict(enumerate(_logits(favourite)))
    for token, bias in zip(options.bias_tokens or (), options.bias or (), strict=True):
        if token in scores:
            scores[token] += bias
    for token in options.suppress_tokens or ():
        scores.pop(token, None)
    if options.allowed_b64 is not None:
        bits = int.from_bytes(decode_base64("allowed_b64", options.allowed_b64), "little")
        scores = {token: score for token, score in scores.items() if bits >> token & 1}
    if not scores:
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"'suppress_tokens' and 'allowed_b64' leave none of the {VOCAB_SIZE} tokens of the "
            "vocabulary to choose; allow at least one",
        )
    return max(scores, key=lambda token: (scores[token], -token))
