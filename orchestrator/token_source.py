"""Where the tokens of one request come from: the prompt, then one decode step for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.pipeline import Pipeline
from orchestrator.request import GenerationRequest
from worker.protocol.ops import SampledReply, Sampling

# A stage that is busy with an op of the request frees the cache after it; a caller that gave the
# request up need not wait for that longer than this.
RELEASE_S = 5.0


@dataclass(frozen=True, slots=True)
class Guesses:
    """How many tokens of a request were guessed and worked on, and how many of them were right."""

    drafted: int
    accepted: int


class TokenSource(Protocol):
    """Gives the tokens of one request in order; counts its positions."""

    @property
    def ahead(self) -> Sequence[int]:
        """The tokens that `next` gives without waiting."""

    @property
    def guesses(self) -> Guesses | None:
        """What was guessed so far; None where nothing is."""

    async def next(self) -> SampledReply:
        """Return the next token; not to be called again after an end or the limit.

        Raises:
            OpRejected, StageFailure: see `StageClient.call`; all tokens before have been given.
        """

    async def aclose(self) -> None:
        """Send no further op."""


class PlainTokens:
    """One decode step for each token, sent when it is asked for.

    Args:
        pipeline: the model.
        request: how to sample, and the size of prefill chunks.
        prompt: ids of the prompt.
    """

    ahead: Sequence[int] = ()
    guesses: Guesses | None = None

    def __init__(
        self, pipeline: Pipeline, request: GenerationRequest, prompt: Sequence[int]
    ) -> None:
        self._pipeline = pipeline
        self._request = request
        self._ids = list(prompt)
        self._is_prefilled = False

    async def next(self) -> SampledReply:
        """Return the next token."""
        ids, rid = self._ids, self._request.request_id
        sampling = sampling_after(self._request.sampling, ids)
        if self._is_prefilled:
            reply = await self._pipeline.forward(rid, ids[-1:], len(ids) - 1, sampling)
        else:
            chunk = self._request.prefill_chunk
            reply = await self._pipeline.prefill(rid, ids, chunk, sampling)
            self._is_prefilled = True
        ids.append(chosen(reply))
        return reply

    async def aclose(self) -> None:
        """Do nothing: a step ends with the task that waits for it."""


def sampling_after(sampling: Sampling, ids: Iterable[int]) -> Sampling:
    """Return how to choose the token after `ids`, the prompt's and the answer's."""
    if sampling.repetition_penalty == 1.0:
        return sampling
    return replace(sampling, penalty_tokens=tuple(sorted(set(ids))))


def chosen(reply: SampledReply) -> int:
    """Return the token of a reply that was asked for one."""
    assert reply.token_id is not None, "sampling was asked for"
    return reply.token_id
