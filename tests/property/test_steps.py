"""Steps in one op are steps in ops of their own: from any length, over any crop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tiny import load_stages, tiny_checkpoint
from worker.model.load_options import LoadOptions
from worker.model.steps import StepRunner

LENGTHS = st.integers(1, 30)
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StepRunner]:
    """Three layers with windows of 8 positions and without."""
    folder = tiny_checkpoint(
        tmp_path_factory.mktemp("steps"),
        "gemma3_text",
        num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )
    (runner,) = load_stages(folder, (0, 3), LoadOptions())
    yield StepRunner(runner)


@given(prefill=st.integers(0, 20), count=LENGTHS, back=st.integers(0, 12), again=LENGTHS)
@settings(max_examples=8)
def test_steps_are_single_ops(
    steps: StepRunner, prefill: int, count: int, back: int, again: int
) -> None:
    runner = steps._runner
    caches = runner.new_cache(), runner.new_cache()
    generator = torch.Generator().manual_seed(prefill * 1000 + count)
    ids = torch.randint(3, 150, (1, prefill + count + again), generator=generator)
    for cache in caches:
        if prefill:
            runner.forward(ids[:, :prefill], cache)

    def both(start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        singly = [runner.forward(ids[:, i : i + 1], caches[1]) for i in range(start, end)]
        return steps.forward(ids[:, start:end], caches[0]), torch.cat(singly, 1)

    first = both(prefill, prefill + count)
    length = prefill + count - min(back, count - 1)
    for cache in caches:
        cache.crop_to(length)
    second = both(length, length + again)
    assert [torch.equal(*first), torch.equal(*second)] == [True, True]
    assert [cache.seen for cache in caches] == [length + again] * 2
