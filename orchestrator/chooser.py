"""How the next token of one request is to be chosen, given those before it."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.request import GenerationRequest
from worker.protocol.ops import Sampling


class Chooser:
    """Follows one answer; everything that the last stage needs stands in each op.

    So a stage keeps nothing of it, and a step that is sent again chooses as it did.

    Args:
        request: how to sample.
        prompt: ids of the prompt.
    """

    def __init__(self, request: GenerationRequest, prompt: Sequence[int]) -> None:
        self._request = request
        self._seen = None if request.sampling.repetition_penalty == 1.0 else set(prompt)
        self._counts: Counter[int] = Counter()
        self._constraint = None if request.grammar is None else request.grammar.begin()

    def sampling(self) -> Sampling:
        """Return how to choose the token after those taken so far."""
        request = self._request
        sampling = request.sampling
        if self._seen is not None:
            sampling = replace(sampling, penalty_tokens=tuple(sorted(self._seen)))
        if bias := self._bias():
            sampling = replace(sampling, bias_tokens=tuple(bias), bias=tuple(bias.values()))
        allowed = None if self._constraint is None else self._constraint.allowed()
        if allowed is not None:
            sampling = replace(sampling, allowed_b64=base64.b64encode(allowed))
        return sampling

    def take(self, token_id: int) -> None:
        """Hear which token came next."""
        if self._seen is not None:
            self._seen.add(token_id)
        if self._request.is_steered:
            self._counts[token_id] += 1
        if self._constraint is not None:
            self._constraint.take(token_id)

    def _bias(self) -> dict[int, float]:
        """Return what is added to logits, by token id."""
        presence, frequency = self._request.presence_penalty, self._request.frequency_penalty
        bias = dict(self._request.logit_bias)
        if presence or frequency:
            for token_id, count in self._counts.items():
                bias[token_id] = bias.get(token_id, 0.0) - presence - frequency * count
        return dict(sorted(bias.items()))
