"""Choose the next token from logits, as a pure function of logits, options and (seed, position)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import isfinite
from typing import Any

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from worker.backends.base import Sampled
from worker.model.steering import AllowedTokens, TokenBias
from worker.protocol.ops import Sampling
from worker.protocol.schema import ErrorCode, ProtocolError

# Below this a division by the temperature could overflow, and no second token has a chance left.
_GREEDY_BELOW = 1e-5
_DRAW_BITS = 53  # what a float64 in [0, 1) can hold


def choose(logits: torch.Tensor, options: Sampling, position: int) -> Sampled:
    """Choose the token that stands at `position`, for each sequence of a batch.

    Args:
        logits: `[batch, vocab]`, any float dtype and device, as the model gave them.
        options: how to choose; token ids in them are within the vocabulary.
        position: absolute index of the token to be chosen.

    Raises:
        ProtocolError: `internal` when the logits hold nan or inf, `bad_field` when no token is
            left to choose, the penalty or a bias leaves the range of float32, or a bitmap is no
            base64.
    """
    # On the CPU in float32, as `generate` has them; a draw then does not depend on the device.
    raw = logits.to(device="cpu", dtype=torch.float32, copy=True)
    _require_finite(raw, position)
    scores = filtered(raw, options)
    if not bool((scores.amax(-1) < torch.inf).all()):  # `amax` hands nan on
        raise ProtocolError(
            ErrorCode.BAD_FIELD,
            f"'repetition_penalty' {options.repetition_penalty} makes scores that are no finite "
            "numbers; give one nearer to 1, as 0.5 to 2",
        )
    if bool((scores.amax(-1) == -torch.inf).any()):
        raise ProtocolError(ErrorCode.BAD_FIELD, _none_left(options, raw.shape[-1]))
    if _is_greedy(options):
        chosen = scores.argmax(-1).tolist()
    else:
        chosen = [
            _draw(row, uniform(options.seed, position, index)) for index, row in enumerate(scores)
        ]
    return _described(raw[0], chosen, options)


def choose_rows(
    logits: torch.Tensor, options: Sequence[Sampling], positions: Sequence[int]
) -> list[Sampled | ProtocolError]:
    """Choose a token for each row `[rows, vocab]` as `choose` does for that row alone.

    Greedy choices without more are made for all rows at once. An error stands in the place of a
    choice that cannot be made.
    """
    plain = [i for i, each in enumerate(options) if _is_plain(each)]
    found: dict[int, Sampled | ProtocolError] = {}
    if plain:
        rows = logits if len(plain) == len(options) else logits[plain]
        raw = rows.to(device="cpu", dtype=torch.float32)
        highest, tokens = (values.tolist() for values in raw.max(-1))
        for i, most, token in zip(plain, highest, tokens, strict=True):
            if isfinite(most):
                found[i] = Sampled(token_ids=(token,))
    for i, each in enumerate(options):
        if i not in found:
            try:
                found[i] = choose(logits[i : i + 1], each, positions[i])
            except ProtocolError as error:
                found[i] = error
    return [found[i] for i in range(len(options))]


def filtered(logits: torch.Tensor, options: Sampling) -> torch.Tensor:
    """Return float32 `[batch, vocab]` scores with -inf where a token must not be chosen.

    The processors and their order are those of transformers' `generate`, so that each option
    means what it means there (`GenerationMixin._get_logits_processor`); a bias is added to what
    the repetition penalty leaves.
    """
    processors = LogitsProcessorList()
    if options.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(float(options.repetition_penalty)))
    if options.bias_tokens:
        processors.append(TokenBias(options.bias_tokens, options.bias or ()))
    if options.suppress_tokens:
        processors.append(SuppressTokensLogitsProcessor(options.suppress_tokens))
    if options.allowed_b64 is not None:
        processors.append(AllowedTokens(options.allowed_b64))
    if not _is_greedy(options):
        processors.append(TemperatureLogitsWarper(float(options.temperature)))
        if options.top_k:
            processors.append(TopKLogitsWarper(options.top_k))
        if options.top_p < 1.0:
            processors.append(TopPLogitsWarper(float(options.top_p)))
        if options.min_p > 0.0:
            processors.append(MinPLogitsWarper(float(options.min_p)))
    seen: Any = torch.tensor([options.penalty_tokens or ()], dtype=torch.long)
    scores: torch.Tensor = processors(seen, logits)
    return scores


def uniform(seed: int, position: int, row: int) -> float:
    """Return a number in [0, 1) that depends on the three arguments alone.

    Counter-based: no generator is advanced, so a replay after a fault, or another packing of
    the same requests, draws the same tokens.
    """
    counter = f"stageline-draw:{seed}:{position}:{row}".encode()
    digest = int.from_bytes(blake2b(counter, digest_size=8).digest(), "little")
    return float(digest >> (64 - _DRAW_BITS)) / float(1 << _DRAW_BITS)


def _draw(scores: torch.Tensor, point: float) -> int:
    """Invert the cumulative distribution of `softmax(scores)` at `point`, in token id order."""
    cumulative = scores.to(torch.float64).softmax(-1).cumsum(-1)
    target = cumulative[-1] * point
    # `right` skips tokens of probability zero, on which no point can fall
    index = int(torch.searchsorted(cumulative, target, right=True))
    # the product may round up to the total; the point then belongs to the last possible token
    last = int(torch.searchsorted(cumulative, cumulative[-1], right=False))
    return min(index, last)


def _is_greedy(options: Sampling) -> bool:
    return options.temperature < _GREEDY_BELOW


def _is_plain(options: Sampling) -> bool:
    """Say whether the most likely token is all that is asked for."""
    return (
        _is_greedy(options)
        and options.repetition_penalty == 1.0
        and not (options.suppress_tokens or options.logprobs or options.top_logprobs)
        and not (options.bias_tokens or options.allowed_b64 is not None)
    )


def _none_left(options: Sampling, vocab_size: int) -> str:
    if options.allowed_b64 is None:
        return (
            f"'suppress_tokens' names all {vocab_size} tokens of the vocabulary, so none is left "
            "to choose; suppress fewer"
        )
    suppressed = ", and 'suppress_tokens' leaves none of those" if options.suppress_tokens else ""
    return (
        f"'allowed_b64' allows none of the {vocab_size} tokens of the vocabulary that the model "
        f"can choose{suppressed}; set the bit of at least one"
    )


def _require_finite(raw: torch.Tensor, position: int) -> None:
    # `amax` hands nan on; -inf alone is a token that the model itself rules out
    for index, highest in enumerate(raw.amax(-1).tolist()):
        if not isfinite(highest):
            raise ProtocolError(
                ErrorCode.INTERNAL,
                f"the logits for position {position} (sequence {index}) hold {highest} in place "
                "of finite numbers; check the model's files, or run it at --quantization bfloat16",
            )


def _described(raw: torch.Tensor, chosen: list[int], options: Sampling) -> Sampled:
    """Add the log probabilities of the first sequence where they were asked for."""
    if not (options.logprobs or options.top_logprobs):
        return Sampled(token_ids=tuple(chosen))
    logprobs = raw.log_softmax(-1)
    top_tokens: tuple[int, ...] | None = None
    top_logprobs: tuple[float, ...] | None = None
    if options.top_logprobs:
        # a token that the model itself rules out has no finite logarithm, and JSON no other
        possible = int((logprobs > -torch.inf).sum())
        best = logprobs.topk(min(options.top_logprobs, possible))
        top_tokens = tuple(best.indices.tolist())
        top_logprobs = tuple(best.values.tolist())
    return Sampled(
        token_ids=tuple(chosen),
        logprob=float(logprobs[chosen[0]]),
        top_tokens=top_tokens,
        top_logprobs=top_logprobs,
    )
