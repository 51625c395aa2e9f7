"""How fast answers come over slow links, in virtual time: much where they repeat, never slower."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from orchestrator.speculation.drafter import Draft, Drafter
from orchestrator.speculation.ngram import NgramDrafter
from tests.support.virtual_time import LinkedStages, VirtualLoop, run_virtually

LINKS_S = (0.03, 0.04, 0.05, 0.06, 0.07, 0.075)
WORK_S, ROW_S = 0.012, 0.0007
Text = tuple[list[int], list[int]]


class Wrong:
    """Guesses what never comes, however often."""

    takes_time = False

    async def guess(self, ids: Sequence[int], num_certain: int, most: int) -> Draft:
        return Draft((-2,) * most, (9,) * most)

    async def aclose(self) -> None:
        pass


def copied(seed: int, *, changed_every: int, count: int = 96) -> Text:
    """Return a text, and its copy in which some words are others."""
    luck = random.Random(seed)
    prompt = [luck.randrange(60) if luck.random() < 0.5 else 1000 + i for i in range(150)]
    answer = [
        5000 + i if i % changed_every == changed_every - 1 else token
        for i, token in enumerate(prompt[:count])
    ]
    return prompt, answer


def gains(
    monkeypatch: pytest.MonkeyPatch,
    texts: Sequence[Text],
    drafter: type[Drafter],
    links_s: Sequence[float] = LINKS_S,
    row_s: float = ROW_S,
) -> list[float]:
    """Return how many times as fast as plain decoding each answer comes, one after another."""

    async def run(loop: VirtualLoop) -> list[float]:
        clock = SimpleNamespace(perf_counter=loop.time)
        monkeypatch.setattr("orchestrator.speculation.speculated.time", clock)
        stages = LinkedStages(links_s, WORK_S, row_s)
        found = []
        for prompt, answer in texts:
            took_s = await stages.answer_s(prompt, answer, drafter())
            found.append((len(answer) - 1) * stages.plain_s / took_s)
        return found

    return run_virtually(run)


def test_a_copy_comes_many_times_as_fast_as_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [copied(seed, changed_every=1000) for seed in range(4)]
    first, *others = gains(monkeypatch, texts, NgramDrafter)
    assert first >= 12
    assert min(others) >= 20


def test_a_copy_with_changed_words_costs_about_a_round_trip_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [copied(seed, changed_every=12) for seed in range(4)]
    # 8 of 96 words are others: the one in the place of a guess comes with the pass that had it,
    # and the copy goes on with the next one.
    assert min(gains(monkeypatch, texts, NgramDrafter)) >= 7


@pytest.mark.parametrize("count", [16, 96])
@pytest.mark.parametrize("row_s", [ROW_S, 0.25 * WORK_S, WORK_S])
@pytest.mark.parametrize("links_s", [LINKS_S, (0.0, 0.0), (0.001,)], ids=["far", "near", "one"])
def test_an_answer_of_which_nothing_is_guessed_right_is_hardly_slower(
    monkeypatch: pytest.MonkeyPatch, links_s: Sequence[float], row_s: float, count: int
) -> None:
    texts = [copied(seed, changed_every=1, count=count) for seed in range(3)]
    assert min(gains(monkeypatch, texts, Wrong, links_s, row_s)) >= 0.95
