"""Tell how likely given tokens were, from logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from worker.backends.base import RULED_OUT, Scored

# Rows that are turned into float32 at once: 16 rows of 150,000 tokens are 10 MB.
MOST_ROWS = 16


def score_rows(logits: torch.Tensor, tokens: Sequence[int], top_logprobs: int) -> list[Scored]:
    """Return for each row how likely the token after it is, by the softmax of the row.

    Args:
        logits: `[rows, vocab]`, any float dtype and device, as the model gave them.
        tokens: the token after each of the rows.
        top_logprobs: how many of the likeliest to name.
    """
    # On the CPU in float32, as a token is chosen.
    logprobs = logits.to(device="cpu", dtype=torch.float32).log_softmax(-1)
    own = logprobs.gather(-1, torch.tensor(tokens, dtype=torch.long)[:, None])[:, 0]
    found = own.clamp_min(RULED_OUT).tolist()
    if not top_logprobs:
        return [Scored(logprob=logprob) for logprob in found]
    best = logprobs.topk(min(top_logprobs, logprobs.shape[-1]))
    tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        _with_top(logprob, ids, values) for logprob, (ids, values) in zip(found, tops, strict=True)
    ]


def _with_top(logprob: float, ids: list[int], values: list[float]) -> Scored:
    # What the model itself rules out has no finite logarithm, and JSON no other.
    count = sum(value > -torch.inf for value in values)
    return Scored(
        logprob=logprob, top_tokens=tuple(ids[:count]), top_logprobs=tuple(values[:count])
    )
