"""Replayed decode steps give the bits of plain transformers; recording is that of a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.replayed_ops import ReplayedOps
from tests.support.tiny import (
    load_stages,
    reference_logits,
    reference_model,
    same,
    single_prompt,
    split_logits,
    tiny_checkpoint,
)
from worker.model.engine import graphed
from worker.model.graph_memory import graph_bytes, step_bytes
from worker.model.graph_step import GraphStep
from worker.model.load import prepare_stage
from worker.model.load_options import LoadOptions
from worker.model.memory import estimate_memory
from worker.model.run import StageRunner
from worker.protocol.stage import StageSlice

STOCK = LoadOptions(engine="stock")

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama of six layers."""
    return tiny_checkpoint(tmp_path_factory.mktemp("llama") / "m", "llama")


def middle(folder: Path, graphs: ReplayedOps | None = None) -> StageRunner:
    """Layers 2 and 3, which record with `graphs`, or run the model's own code."""
    runner = load_stages(folder, (0, 2, 4, 6), STOCK)[1]
    return runner if graphs is None else graphed(runner, lambda: graphs)


def step_of(runner: StageRunner) -> GraphStep:
    assert isinstance(runner.decode_step, GraphStep)
    return runner.decode_step


def hidden(runner: StageRunner, count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, count, runner.width, generator=generator).to(torch.bfloat16)


@pytest.mark.parametrize("model_type", ["llama", "bloom", "falcon", "qwen3_moe", "deepseek_v3"])
def test_a_pipeline_that_replays_gives_the_bits_of_plain_transformers(
    model_type: str, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(tmp_path / "m", model_type)
    wanted = reference_logits(reference_model(folder), single_prompt(160))
    records = [ReplayedOps(), ReplayedOps()]
    stages = [
        graphed(runner, lambda graphs=graphs: graphs)  # type: ignore[misc]
        for runner, graphs in zip(load_stages(folder, (0, 3, 6), STOCK), records, strict=True)
    ]
    assert all(step_of(stage) for stage in stages)
    for graphs in records:
        graphs.replays.clear()
    found = split_logits(stages, single_prompt(160))
    assert same(wanted, found)
    # a step is every record once, in the order in which they were made
    steps = len(found) - 1
    assert [g.replays for g in records] == [[*range(g.count)] * steps for g in records]


def test_requests_take_turns_across_growth_and_a_crop_and_keep_what_they_were_given(
    llama: Path,
) -> None:
    found = []
    for runner in (middle(llama, ReplayedOps()), middle(llama)):
        caches = [runner.new_cache(), runner.new_cache()]
        outputs = [
            runner.forward(hidden(runner, n, n), c) for n, c in zip((60, 3), caches, strict=True)
        ]
        for i in range(45):
            outputs += [runner.forward(hidden(runner, 1, i + j), c) for j, c in enumerate(caches)]
        caches[0].crop_to(62)
        outputs += [runner.forward(hidden(runner, 1, i), caches[0]) for i in range(3)]
        layers: list[Any] = [cache.layers[i] for cache in caches for i in (2, 3)]
        found.append([*outputs, *(t for layer in layers for t in (layer.keys, layer.values))])
    assert same(*found)


def test_a_replay_writes_over_what_the_one_before_gave(llama: Path) -> None:
    graphs = ReplayedOps()
    source = torch.ones(4)
    kept = [source]
    replay, (result,) = graphs.record(lambda: [kept[0] * 2 + 1])
    place = result.data_ptr()
    source.fill_(5)
    before = result.tolist()
    replay()
    assert (before, result.tolist(), result.data_ptr()) == ([3.0] * 4, [11.0] * 4, place)
    del kept[0], source
    with pytest.raises(AssertionError, match="memory that nobody keeps"):
        replay()


@pytest.mark.parametrize(
    ("graphs", "reason"),
    [
        (ReplayedOps(refuses=2), "RuntimeError: operation not permitted when stream is capturing"),
        (ReplayedOps(spoils=True), "other bits after 2 positions"),
    ],
)
def test_what_cannot_be_recorded_or_differs_goes_through_the_models_own_code(
    llama: Path, graphs: ReplayedOps, reason: str
) -> None:
    runner, plain = middle(llama, graphs), middle(llama)
    note = f"Decode steps go through the model's own code, which takes longer: {reason}."
    assert (runner.decode_step, runner.loaded.notes) == (None, (*plain.loaded.notes, note))
    outputs = []
    for each in (runner, plain):
        cache = each.new_cache()
        outputs.append([each.forward(hidden(each, n, n), cache) for n in (5, 1)])
    assert same(*outputs)


def test_a_step_that_fails_or_has_another_form_changes_nothing(llama: Path) -> None:
    graphs = ReplayedOps()
    runner = middle(llama, graphs)
    cache, wanted = runner.new_cache(), runner.new_cache()
    for each in (cache, wanted):
        runner.forward(hidden(runner, 4, 0), each)
    with pytest.raises(RuntimeError):
        runner.forward(hidden(runner, 1, 1)[..., :-8], cache)
    graphs.fails_at = graphs.count - 1
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        runner.forward(hidden(runner, 1, 1), cache)
    graphs.fails_at = None
    assert cache.seen == 4
    steps = [runner.forward(hidden(runner, 1, 1), each) for each in (cache, wanted)]
    assert torch.equal(*steps)


@pytest.mark.parametrize("model_type", ["llama", "bloom", "deepseek_v3"])
def test_what_is_held_is_part_of_the_prediction(model_type: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", model_type)

    def predicted(options: LoadOptions) -> int:
        request = prepare_stage(folder, StageSlice(2, 4, 6), options)
        return estimate_memory(request, max_context=64, prefill_chunk=8).scratch_bytes

    plan = prepare_stage(folder, StageSlice(2, 4, 6), LoadOptions()).plan
    assert step_of(middle(folder, ReplayedOps())).static_bytes <= step_bytes(plan)
    more = predicted(LoadOptions(engine="graphs")) - predicted(LoadOptions())
    assert more == graph_bytes(plan) > step_bytes(plan)
