"""How likely the tokens of a text were, each after those before it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from orchestrator.chunk import Scoring
from orchestrator.failures import OpRejected
from orchestrator.prefixes.prefixes import RELEASE_S
from orchestrator.request import DEFAULT_PREFILL_CHUNK, RequestRefused
from orchestrator.stage.together import at_once
from orchestrator.stages import Stages
from worker.protocol.capabilities import Capability
from worker.protocol.errors import ErrorCode
from worker.protocol.ops import ForwardAndSample


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One token of a text.

    Attributes:
        token_id: which.
        logprob: natural log of its probability after those before it, before any sampling
            filter; -9999.0 where the model gives it none. None for the first token.
        top_tokens: ids of the likeliest tokens at its place, as many as were asked for.
        top_logprobs: their log probabilities.
    """

    token_id: int
    logprob: float | None
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


async def score(
    stages: Stages,
    tokens: Sequence[int],
    top_logprobs: int = 0,
    prefill_chunk: int = DEFAULT_PREFILL_CHUNK,
) -> list[TokenScore]:
    """Return how likely each token of a text is; a KV cache is held meanwhile, and freed.

    Args:
        stages: the model.
        tokens: ids of the text, at least one.
        top_logprobs: how many of the likeliest to name at each place.
        prefill_chunk: tokens that go through the stages together.

    Raises:
        RequestRefused: no tokens, or a last stage that cannot score.
        OpRejected, StageFailure, ConnectionError: see `Stages.forward`.
    """
    if not tokens:
        raise RequestRefused("there are no tokens to score; give at least one")
    if Capability.SCORE_TOKENS not in stages.facts.ready[-1].capabilities:
        raise RequestRefused(
            f"the last stage, on {stages.hosts[-1]}, cannot score tokens; use a worker that has "
            f"the capability {Capability.SCORE_TOKENS}"
        )
    ids = tuple(tokens)
    text = _Text(stages, f"score-{uuid4().hex}", ids, top_logprobs)
    try:
        chunks = await at_once(
            text.chunk(start, min(start + prefill_chunk, len(ids)))
            for start in range(0, len(ids), prefill_chunk)
        )
    finally:
        await text.release()
    return [TokenScore(ids[0], None), *(one for chunk in chunks for one in chunk)]


class _Text:
    """A text on its way through the stages, as many of its chunks at once as there are stages."""

    def __init__(self, stages: Stages, rid: str, ids: tuple[int, ...], top_logprobs: int) -> None:
        self._stages = stages
        self._rid = rid
        self._ids = ids
        self._top_logprobs = top_logprobs
        # Who waits is let in in the order of coming: chunks follow each other.
        self._places = asyncio.Semaphore(max(len(stages.stages), 2))

    async def chunk(self, start: int, end: int) -> list[TokenScore]:
        """Run the tokens `start:end` and return the scores of those after each of them."""
        after = self._ids[start + 1 : end + 1]
        scoring = Scoring(after, self._top_logprobs) if after else None
        async with self._places:
            reply = await self._stages.forward(
                self._rid, self._ids[start:end], start, None, scoring=scoring
            )
        found = reply.scores or ()
        if len(found) != len(after):
            raise self._wrong(f"it has scored {len(found)} of {len(after)} tokens")
        try:
            return [_score(token, fields) for token, fields in zip(after, found, strict=True)]
        except (KeyError, TypeError, ValueError) as error:
            raise self._wrong(f"{type(error).__name__}: {error}") from None

    async def release(self) -> None:
        """Free the KV caches; a stage that is busy or lost is not waited for long."""
        # One that is busy frees the cache behind the op that it is busy with.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._stages.release(self._rid)

    def _wrong(self, why: str) -> OpRejected:
        stage, host = len(self._stages.stages) - 1, self._stages.hosts[-1]
        code = str(ErrorCode.INTERNAL)
        return OpRejected(stage, host, ForwardAndSample.op, code, f"'scores' is wrong: {why}")


def _score(token: int, fields: dict[str, object]) -> TokenScore:
    logprob = fields["logprob"]
    top_tokens, top_logprobs = fields.get("top_tokens") or (), fields.get("top_logprobs") or ()
    if not isinstance(logprob, int | float):
        raise TypeError(f"'logprob' is {logprob!r:.40}, it must be a number")
    if not (isinstance(top_tokens, list | tuple) and isinstance(top_logprobs, list | tuple)):
        raise TypeError("'top_tokens' and 'top_logprobs' must be lists")
    return TokenScore(
        token_id=token,
        logprob=float(logprob),
        top_tokens=tuple(int(one) for one in top_tokens),
        top_logprobs=tuple(float(one) for one in top_logprobs),
    )
