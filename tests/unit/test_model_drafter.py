"""A draft model catches up in chunks, and what it is busy with keeps no answer waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.request import GenerationRequest
from orchestrator.speculation.drafter import Draft
from orchestrator.speculation.model_drafter import ModelDrafter
from worker.protocol.ops import SampledReply, Sampling


class Model:
    """A draft model that guesses 7 whatever it is given, and never gets to a release.

    Attributes:
        asked: of each pass position, number of tokens, and whether it chose one.
    """

    facts = SimpleNamespace(max_context=None, vocab_size=10)

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bool]] = []

    async def prefill(
        self, rid: object, tokens: Sequence[int], chunk_tokens: int, sampling: Sampling
    ) -> SampledReply:
        return await self.forward(rid, tokens, 0, sampling)

    async def forward(
        self, rid: object, tokens: Sequence[int], position: int, sampling: Sampling | None
    ) -> SampledReply:
        self.asked.append((position, len(tokens), sampling is not None))
        return SampledReply(token_id=None if sampling is None else 7)

    async def release(self, rid: object) -> None:
        await asyncio.Event().wait()


def drafter(model: Model) -> ModelDrafter:
    source: Any = model
    return ModelDrafter(source, GenerationRequest(request_id="r", prompt="p", prefill_chunk=4), 10)


def test_what_came_while_nothing_was_guessed_is_caught_up_with_in_chunks() -> None:
    model = Model()

    async def run() -> list[Draft]:
        own = drafter(model)
        return [await own.guess([1] * length, length, 1) for length in (3, 4, 14)]

    assert asyncio.run(run()) == [Draft((7,), (0,))] * 3
    assert model.asked == [(0, 3, True), (3, 1, True), (4, 4, False), (8, 4, False), (12, 2, True)]


def test_a_draft_model_that_is_busy_is_not_waited_for_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.speculation.model_drafter.RELEASE_S", 0.0)
    asyncio.run(asyncio.wait_for(drafter(Model()).aclose(), 10))
