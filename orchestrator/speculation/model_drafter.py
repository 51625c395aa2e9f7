"""Guess with a small model that runs beside the orchestrator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from itertools import islice, takewhile

from orchestrator.prefixes.canon import same_start
from orchestrator.prefixes.prefixes import RELEASE_S
from orchestrator.request import GenerationRequest
from orchestrator.speculation.chances import Chances
from orchestrator.speculation.drafter import Draft
from orchestrator.speculation.ngram import NgramDrafter
from orchestrator.stages import Stages
from orchestrator.token_source import chosen, sampling_after
from worker.protocol.capabilities import Capability
from worker.protocol.ops import RequestId, SampledReply

# More tokens than these are caught up with first, as a prompt is.
_MOST_STEPS = 4
# Rows of a pass: by the chance of what was looked up. Rows may cost a small model something.
_ROWS = ((0.5, 4), (0.7, 16))


class ModelDrafter:
    """Lets the draft model go on from where it was, cropping what turned out wrong.

    Where the text has had the newest tokens before, what followed them then goes through the draft
    model in one pass: it keeps what it would have said too, and adds its own next token. So a
    quote is drafted many tokens at a time.

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
        self._lookup = NgramDrafter() if verifies(model) else None
        self._chances = Chances()  # that the model agrees with what was looked up
        self._held: list[int] = []  # tokens whose keys and values the model is known to hold

    async def guess(self, ids: Sequence[int], num_certain: int, most: int) -> Draft:
        """Guess at most `most` tokens, at least one; none where the draft model cannot go on.

        Raises:
            OpRejected, StageFailure, ConnectionError: see `Seat.ask`.
        """
        own = list(ids)
        limit, vocab_size = self._model.facts.max_context, self._model.facts.vocab_size
        if any(token >= vocab_size for token in own[same_start(self._held, own) :]):
            return Draft()
        if limit is not None:
            most = min(most, limit + 1 - len(own))
        if most < 1:
            return Draft()
        start = await self._catch_up(own)
        found = Draft()
        if start and most > 1 and self._lookup is not None:
            found = self._lookup.look_up(own, num_certain, most - 1)
        likely = self._likely(found, len(own) - start)
        tokens = list[int]()
        for i, reply in enumerate(await self._replies(own, start, likely)):
            token = chosen(reply)
            if token >= self._vocab_size:
                break
            tokens.append(token)
            if i == len(likely) or likely[i] != token:
                break
        if tokens and found.tokens:
            self._chances.note(found.kinds[0], is_right=found.tokens[0] == tokens[0])
        return Draft(tuple(tokens), (0,) * len(tokens))

    async def aclose(self) -> None:
        """Free the cache; a model that is busy does so later."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._model.release(self._rid)

    async def _catch_up(self, ids: list[int]) -> int:
        """Have the model hold the tokens, but for a few of the newest; return how many it does."""
        start = same_start(self._held, ids[:-1])
        # Until the reply is here it is not known what of the new tokens is held.
        del self._held[start:]
        most_left = self._chunk if self._lookup is None else _MOST_STEPS
        while start and (num_new := len(ids) - start) > most_left:
            part = ids[start : start + min(self._chunk, num_new - 1)]
            await self._model.forward(self._rid, part, start, None)
            self._held += part
            start += len(part)
        return start

    def _likely(self, found: Draft, num_new: int) -> tuple[int, ...]:
        """Return what of the tokens that were looked up is worth a place in the next pass."""
        if not found.tokens:
            return ()
        chance = self._chances.of(found.kinds[0])
        rows = max((rows for least, rows in _ROWS if chance >= least), default=0)
        # What is past the small vocabulary could not be worked on.
        known = self._model.facts.vocab_size
        tokens = takewhile(lambda token: token < known, found.tokens)
        return tuple(islice(tokens, max(0, rows - num_new)))

    async def _replies(
        self, ids: list[int], start: int, likely: tuple[int, ...]
    ) -> Sequence[SampledReply]:
        """Return what the model says after `ids`, and after each of `likely` behind them."""
        model, rid, new = self._model, self._rid, ids[start:]
        replies: Sequence[SampledReply]
        if likely:
            sampling = sampling_after(self._sampling, ids[: start + 1])
            replies = await model.verify(rid, [*new, *likely], start, sampling)
            replies = replies[len(new) - 1 :]
        elif start:
            replies = [await model.forward(rid, new, start, sampling_after(self._sampling, ids))]
        else:
            sampling = sampling_after(self._sampling, ids)
            replies = [await model.prefill(rid, ids, self._chunk, sampling)]
        self._held = [*ids, *likely]
        return replies


def verifies(model: Stages) -> bool:
    """Return whether a draft model can work on several guesses at once, for about the cost of one.

    One that cannot put rows into a pack would take a step for each of them.
    """
    facts = model.facts
    can = {Capability.AS_STEPS, Capability.SAMPLE_STEPS} <= set(facts.shared_capabilities)
    return can and facts.max_rows > 1
