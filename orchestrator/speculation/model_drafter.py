"""Guess with a small model that runs beside the orchestrator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from orchestrator.prefixes.canon import same_start
from orchestrator.prefixes.prefixes import RELEASE_S
from orchestrator.request import GenerationRequest
from orchestrator.speculation.drafter import Draft
from orchestrator.stages import Stages
from orchestrator.token_source import chosen, sampling_after
from worker.protocol.ops import RequestId


class ModelDrafter:
    """Lets the draft model go on from where it was, cropping what turned out wrong.

    It draws as the request does, with the same seed: the same number decides in both models, so
    that their draws agree as often as their opinions do.

    Args:
        model: the draft model, of one stage or more; closed by its owner.
        request: how to sample, and the size of prefill chunks.
        vocab_size: of the large model; a guess past it is none.
    """

    takes_time = True

    def __init__(self, model: Stages, request: GenerationRequest, vocab_size: int) -> None:
        self._model = model
        self._rid: RequestId = f"draft-{request.request_id}"
        self._chunk = request.prefill_chunk
        self._sampling = request.sampling
        self._vocab_size = vocab_size
        self._held: list[int] = []  # tokens whose keys and values the model is known to hold

    async def guess(self, ids: Sequence[int], num_certain: int, most: int) -> Draft:
        """Guess at most `most` tokens; none where the draft model's context is full.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        own, tokens = list(ids), list[int]()
        limit, vocab_size = self._model.facts.max_context, self._model.facts.vocab_size
        if any(token >= vocab_size for token in own[len(self._held) :]):
            return Draft()
        while len(tokens) < most and (limit is None or len(own) <= limit):
            token = await self._next(own)
            if token >= self._vocab_size:
                break
            tokens.append(token)
            own.append(token)
        return Draft(tuple(tokens), (0,) * len(tokens))

    async def aclose(self) -> None:
        """Free the cache; a model that is busy does so later."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._model.release(self._rid)

    async def _next(self, ids: list[int]) -> int:
        start = same_start(self._held, ids[:-1])
        sampling = sampling_after(self._sampling, ids)
        # Until the reply is here it is not known what of the new tokens is held.
        del self._held[start:]
        if start == 0:
            reply = await self._model.prefill(self._rid, ids, self._chunk, sampling)
        else:
            # Where nothing was guessed for long, there is a lot to catch up with.
            while len(ids) - start > self._chunk:
                part = ids[start : start + self._chunk]
                await self._model.forward(self._rid, part, start, None)
                self._held += part
                start += len(part)
            reply = await self._model.forward(self._rid, ids[start:], start, sampling)
        self._held = list(ids)
        return chosen(reply)
