"""A draft model catches up in chunks, and what it is busy with keeps no answer waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.request import GenerationRequest
from orchestrator.speculation.model_drafter import ModelDrafter
from worker.protocol.capabilities import Capability
from worker.protocol.ops import SampledReply, Sampling


class Model:
    """A draft model that guesses one more than the last token, 9 at most, and never releases.

    Attributes:
        asked: of each pass position, number of tokens, and how many it chose.
    """

    def __init__(self, *capabilities: Capability) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.facts = SimpleNamespace(
            max_context=40,
            vocab_size=10,
            max_rows=16,
            shared_capabilities=frozenset(capabilities),
        )

    async def prefill(
        self, rid: object, tokens: Sequence[int], chunk_tokens: int, sampling: Sampling
    ) -> SampledReply:
        return await self.forward(rid, tokens, 0, sampling)

    async def forward(
        self, rid: object, tokens: Sequence[int], position: int, sampling: Sampling | None
    ) -> SampledReply:
        self.asked.append((position, len(tokens), int(sampling is not None)))
        return SampledReply(token_id=None if sampling is None else min(tokens[-1] + 1, 9))

    async def verify(
        self, rid: object, tokens: Sequence[int], position: int, sampling: Sampling
    ) -> tuple[SampledReply, ...]:
        self.asked.append((position, len(tokens), len(tokens)))
        return tuple(SampledReply(token_id=min(token + 1, 9)) for token in tokens)

    async def release(self, rid: object) -> None:
        await asyncio.Event().wait()


def drafter(model: Model) -> ModelDrafter:
    source: Any = model
    return ModelDrafter(source, GenerationRequest(request_id="r", prompt="p", prefill_chunk=4), 10)


VERIFIES = (Capability.AS_STEPS, Capability.SAMPLE_STEPS)


def guesses(model: Model, *texts: list[int], most: int = 15) -> list[tuple[int, ...]]:
    async def run() -> list[tuple[int, ...]]:
        own = drafter(model)
        return [(await own.guess(text, len(text), most)).tokens for text in texts]

    return asyncio.run(run())


def test_what_came_while_nothing_was_guessed_is_caught_up_with_in_chunks() -> None:
    model = Model()
    assert guesses(model, *([1] * length for length in (3, 4, 14))) == [(2,)] * 3
    assert model.asked == [(0, 3, 1), (3, 1, 1), (4, 4, 0), (8, 4, 0), (12, 2, 1)]


def test_what_stood_there_before_is_drafted_in_one_pass_as_far_as_the_model_agrees() -> None:
    told = [0, 1, 2, 3, 4, 5, 0, 8, 1]
    model = Model(*VERIFIES)
    # 0 1 2 was followed by 3 4 5 0: the model says 6 in the place of that 0.
    got = guesses(model, told, [*told, 0, 1], [*told, 0, 1, 2], [*told, 0, 1, 2, 3, 4, 5, 6])
    assert got == [(2,), (2, 3, 4), (3, 4, 5, 6), (7,)]
    # The first guess comes with the prompt; then what is new and what is likely behind it.
    assert model.asked == [(0, 9, 1), (9, 4, 4), (11, 4, 4), (15, 15, 15)]


def test_the_longer_what_stood_there_before_the_more_of_it_goes_in_one_pass() -> None:
    told = [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3]
    model = Model(*VERIFIES)
    assert guesses(model, told, [*told, 4]) == [(4,), (5, 6, 7, 8, 9)]
    assert model.asked == [(0, 13, 1), (13, 15, 15)]


def test_what_the_draft_model_does_not_agree_with_is_soon_left_out() -> None:
    told = [5, 1, 3, 0, 5, 1, 3, 0, 7]  # the model says 2 behind 5 1
    model = Model(*VERIFIES)
    assert guesses(model, told, [*told, 5, 1], [*told, 5, 1, 6, 5, 1]) == [(8,), (2,), (2,)]
    assert model.asked == [(0, 9, 1), (9, 4, 4), (11, 3, 1)]


def test_nothing_is_drafted_behind_a_token_that_the_draft_model_does_not_know() -> None:
    told = [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3]
    model = Model(*VERIFIES)
    got = guesses(model, told, [*told, 4], [*told, 4, 12], [*told, 4, 12, 5])
    assert (got[2:], len(model.asked)) == ([(), ()], 2)


def test_a_draft_model_that_cannot_verify_goes_on_token_by_token() -> None:
    told = [0, 1, 2, 3, 4, 5, 0, 8, 1]
    assert guesses(Model(), told, [*told, 0, 1, 2]) == [(2,), (3,)]


def test_no_more_is_drafted_than_the_draft_model_has_places_for() -> None:
    told = [0, 1, 2, 3, 4, 5, 0, 8, 1]
    long = [told * 9][0]
    model = Model(*VERIFIES)
    got = guesses(model, told, [*told, 0, 1, 2], long[:39], long[:41], long[:42], most=2)
    assert (got[1], got[4], max(position + count for position, count, _ in model.asked)) == (
        (3, 4),
        (),
        40,
    )


def test_a_draft_model_that_is_busy_is_not_waited_for_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.speculation.model_drafter.RELEASE_S", 0.0)
    asyncio.run(asyncio.wait_for(drafter(Model()).aclose(), 10))
