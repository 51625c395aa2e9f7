"""Guesses change nothing: whatever is guessed, and when, the tokens are those without."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.bundle.records import NoRecorder
from orchestrator.generate import generate
from orchestrator.request import GenerationRequest
from orchestrator.speculation.drafter import Drafter
from orchestrator.speculation.model_drafter import ModelDrafter
from orchestrator.speculation.ngram import LONGEST_MATCH, MOST_PLACES, NgramDrafter
from tests.support.speculation import (
    VOCAB_SIZE,
    Guessing,
    Ruled,
    Told,
    penalized,
    recurring,
    ruled,
    ruled_answer,
)
from worker.protocol.ops import Sampling

SAMPLINGS = st.sampled_from(
    [
        Sampling(),
        Sampling(temperature=0.8, seed=3),
        Sampling(repetition_penalty=1.3),
        Sampling(temperature=0.8, seed=5, repetition_penalty=1.3),
    ]
)


def mixed(sampling: Sampling, chance: float, luck: random.Random) -> Any:
    """Return what guesses each token right with a chance."""

    def tell(ids: Sequence[int], most: int) -> list[int]:
        known = list(ids)
        for _ in range(luck.randint(0, most)):
            right = ruled(known, penalized(sampling, known))
            known.append(right if luck.random() < chance else luck.randrange(VOCAB_SIZE))
        return known[len(ids) :]

    return tell


async def answer(
    pipeline: Ruled,
    drafter: Drafter,
    sampling: Sampling,
    stop_after: int | None = None,
    **more: Any,
) -> list[int]:
    options = {"request_id": "r", "prompt": "x", "sampling": sampling, **more}
    speculator: Any = Guessing(pipeline, drafter)
    source: Any = pipeline
    outputs = generate(source, GenerationRequest(**options), NoRecorder(), speculator)
    tokens: list[int] = []
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            tokens.append(output.token_id)
            if len(tokens) == stop_after:
                break
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
    return tokens


@settings(max_examples=150)
@given(
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=9),
    SAMPLINGS,
    st.sampled_from([0.0, 0.3, 0.8, 0.97, 1.0]),
    st.booleans(),
    st.integers(1, 40),
    st.integers(0, 1 << 32).map(random.Random),
)
def test_any_guesses_give_the_tokens_of_plain_decoding(
    prompt: list[int],
    sampling: Sampling,
    chance: float,
    takes_time: bool,
    count: int,
    luck: random.Random,
) -> None:
    pipeline = Ruled(
        prompt, max_context=len(prompt) + count, turns=lambda: luck.choice((0, 1, 1, 2, 5, 40))
    )
    drafter = Told(mixed(sampling, chance, luck), takes_time=takes_time)
    tokens = asyncio.run(answer(pipeline, drafter, sampling, max_new_tokens=count))
    # No place is sent whose token nobody wants, and nothing is left behind.
    last = max(position + len(rows) - 1 for rows, position in pipeline.passes)
    assert (tokens, last, drafter.closed, pipeline.released) == (
        ruled_answer(prompt, count, sampling),
        len(prompt) + count - 2,
        True,
        ["r"],
    )


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=9),
    SAMPLINGS,
    st.integers(1, 60),
    st.integers(5, 30),
    st.integers(0, 1 << 32).map(random.Random),
)
def test_a_draft_model_that_looks_up_gives_the_tokens_of_plain_decoding(
    prompt: list[int], sampling: Sampling, count: int, surprise_every: int, luck: random.Random
) -> None:
    rule = recurring(13)
    pipeline = Ruled(prompt, turns=lambda: luck.choice((1, 2, 5)), rule=rule)
    own = Ruled(prompt, len(prompt) + count // 2 + 30, rule=recurring(surprise_every))
    model: Any = own
    request = GenerationRequest(request_id="r", prompt="x", sampling=sampling)
    drafter = ModelDrafter(model, request, VOCAB_SIZE)
    tokens = asyncio.run(answer(pipeline, drafter, sampling, max_new_tokens=count))
    assert (tokens, own.released, own.running) == (
        ruled_answer(prompt, count, sampling, rule),
        ["draft-r"],
        0,
    )


@settings(max_examples=60)
@given(
    st.sets(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=4),
    st.integers(0, 1000),
    st.booleans(),
    st.sampled_from(["end", "refusal", "closing"]),
    st.integers(0, 1 << 32).map(random.Random),
)
def test_an_answer_that_ends_early_ends_where_it_does_without_guesses(
    special: set[int], first: int, takes_time: bool, how: str, luck: random.Random
) -> None:
    prompt, sampling, count = [first], Sampling(), 30
    plain = ruled_answer(prompt, count, sampling)
    pipeline = Ruled(prompt, turns=lambda: luck.choice((0, 1, 3)))
    stop_after = None
    if how == "end":
        pipeline.ends = frozenset(special)
        stops = [i + 1 for i, token in enumerate(plain) if token in special]
        plain = plain[: min(stops, default=count)]
    elif how == "closing":
        stop_after = luck.randint(1, count)
        plain = plain[:stop_after]
    else:
        pipeline.refused = frozenset(special) - {first, *plain}
    drafter = Told(mixed(sampling, 0.8, luck), takes_time=takes_time)
    tokens = asyncio.run(answer(pipeline, drafter, sampling, stop_after, max_new_tokens=count))
    assert (tokens, drafter.closed, pipeline.running) == (plain, True, 0)


def agreeing(ids: Sequence[int], place: int) -> tuple[int, int]:
    """Return how many tokens before a place are those at the end, and beyond one that is not."""
    same = [a == b for a, b in zip(ids[:place][::-1], ids[::-1], strict=False)]
    straight = [*same, False].index(False)
    beyond = [*same[straight + 1 :], False].index(False)
    return min(straight, LONGEST_MATCH), min(beyond, LONGEST_MATCH)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 15), st.data())
def test_a_lookup_finds_the_best_earlier_match(
    ids: list[int], most: int, data: st.DataObject
) -> None:
    """The rule, slowly: two tokens alike, or one, or all but the last; of those the best place."""
    num_certain = data.draw(st.integers(1, len(ids)))
    drafter = NgramDrafter()
    for length in range(1, num_certain):
        drafter.look_up(ids[:length], length, most)
    found = drafter.look_up(ids, num_certain, most).tokens
    fits = {place: agreeing(ids, place) for place in range(1, num_certain)}
    alike = [place for place, (straight, _) in fits.items() if straight > 1]
    alike = alike or [place for place, (straight, _) in fits.items() if straight == 1]
    if not alike:
        ends = range(1, min(num_certain, len(ids) - 1))
        alike = [place + 1 for place in ends if ids[place - 1] == ids[-2]]
        fits = {place: agreeing(ids, place) for place in alike}
    newest = sorted(alike, reverse=True)[:MOST_PLACES]
    # Of equal ones the newest.
    best = max(newest, key=lambda place: 2 * fits[place][0] + fits[place][1], default=None)
    text = list(ids)
    if best is not None:
        for at in range(best, best + most):
            text.append(text[at])
    assert found == tuple(text[len(ids) :])


def test_a_copy_goes_on_behind_a_word_that_was_changed() -> None:
    told = [10, 11, 12, 13, 14, 15, 16]
    changed = [*told, 10, 11, 12, 99]  # 99 in the place of 13, and never seen
    assert NgramDrafter().look_up(changed, len(changed), 3).tokens == (14, 15, 16)


def test_of_places_that_agree_as_far_the_one_with_the_same_words_before_is_taken() -> None:
    told = [1, 2, 3, 7, 20, 21, 4, 5, 6, 7, 30, 31]
    now = [*told, 1, 2, 3, 8, 7]
    assert NgramDrafter().look_up(now, len(now), 1).tokens == (30,)
    now = [*told, 1, 2, 9, 7]
    assert NgramDrafter().look_up(now, len(now), 2).tokens == (20, 21)
