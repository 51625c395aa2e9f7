"""Where the tokens of one request come from: the prompt, then one decode step for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.chooser import Chooser
from orchestrator.prefixes.lease import Lease
from orchestrator.request import GenerationRequest
from orchestrator.stages import Stages
from worker.protocol.ops import SampledReply, Sampling


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

    @property
    def done(self) -> Sequence[int]:
        """Ids of prompt and answer that every stage has worked on for certain.

        Empty before all of the prompt is among them.
        """

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
        request: how to sample.
        lease: the KV caches, and how the prompt is computed.
    """

    ahead: Sequence[int] = ()
    guesses: Guesses | None = None

    def __init__(self, pipeline: Stages, request: GenerationRequest, lease: Lease) -> None:
        self._pipeline = pipeline
        self._lease = lease
        self._ids = list(lease.prompt)
        self._chooser = Chooser(request, lease.prompt)
        self._num_done = 0

    @property
    def done(self) -> Sequence[int]:
        """Ids that every stage has worked on for certain."""
        return self._ids[: self._num_done]

    async def next(self) -> SampledReply:
        """Return the next token."""
        ids, rid = self._ids, self._lease.name
        sampling = self._chooser.sampling()
        if self._num_done:
            reply = await self._pipeline.forward(rid, ids[-1:], len(ids) - 1, sampling)
        else:
            reply = await self._pipeline.run(rid, self._lease.ops, sampling)
        self._num_done = len(ids)
        token_id = chosen(reply)
        ids.append(token_id)
        self._chooser.take(token_id)
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
