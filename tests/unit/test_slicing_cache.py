"""A stage's cache gives the bits of the library's, goes back exactly, and survives failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.tiny import (
    reference_logits,
    reference_model,
    same,
    single_prompt,
    split_runners,
    through_bytes,
    tiny_checkpoint,
)
from worker.model.decode_step import DecodeStep
from worker.model.errors import CannotCrop
from worker.model.kv import StageCache
from worker.model.load_options import Engine, LoadOptions
from worker.model.run import StageRunner

torch.set_num_threads(1)
CROPPABLE = ["llama", "gemma3_text", "deepseek_v3", "deepseek_v32", "gpt_oss"]
RECURRENT = ["qwen3_next", "mamba", "lfm2", "jamba"]
PROMPT = single_prompt(160).ids


def _step(
    stages: Sequence[StageRunner], caches: Sequence[StageCache], x: torch.Tensor
) -> torch.Tensor:
    hidden = x
    for stage, cache in zip(stages, caches, strict=True):
        last = stage.stage.is_last
        hidden = stage.forward(hidden, cache, want="logits" if last else "hidden")
        hidden = hidden if last else through_bytes(hidden)
    return hidden


def _decode(
    stages: Sequence[StageRunner], caches: Sequence[StageCache], x: torch.Tensor, steps: int
) -> list[torch.Tensor]:
    logits = []
    for _ in range(steps):
        logits.append(_step(stages, caches, x))
        x = logits[-1].argmax(-1, keepdim=True)
    return logits


def _stages(
    tmp_path: Path, model_type: str, options: LoadOptions | None = None
) -> tuple[list[StageRunner], list[StageCache]]:
    stages = split_runners(tiny_checkpoint(tmp_path / "m", model_type), 6, 2, options)
    return stages, [stage.new_cache() for stage in stages]


@pytest.mark.parametrize("model_type", CROPPABLE)
def test_decoding_goes_on_exactly_after_going_back(model_type: str, tmp_path: Path) -> None:
    stages, caches = _stages(tmp_path, model_type)
    wanted = _decode(stages, caches, PROMPT, 16)
    for cache in caches:
        cache.crop_to(PROMPT.shape[1] + 5)
    again = _decode(stages, caches, wanted[5].argmax(-1, keepdim=True), 10)
    assert same(wanted[6:], again)


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_recurrent_cache_goes_back_by_the_last_op_alone(model_type: str, tmp_path: Path) -> None:
    stages, caches = _stages(tmp_path, model_type)
    wanted = _decode(stages, caches, PROMPT, 6)
    length = PROMPT.shape[1] + 5
    assert [cache.can_crop(length - 2) for cache in caches] == [False, False]
    with pytest.raises(CannotCrop, match=f"from {length} to {length - 2}"):
        caches[0].crop_to(length - 2)
    for cache in caches:
        cache.crop_to(length - 1)
    again = _decode(stages, caches, wanted[4].argmax(-1, keepdim=True), 1)
    assert same(wanted[5:], again)


@pytest.mark.parametrize("model_type", [*CROPPABLE, *RECURRENT])
def test_a_snapshot_brings_back_a_cache_that_was_cropped_and_overwritten(
    model_type: str, tmp_path: Path
) -> None:
    stages, caches = _stages(tmp_path, model_type)
    wanted = _decode(stages, caches, PROMPT, 8)
    floor = PROMPT.shape[1] + 6
    snapshots = [cache.snapshot(floor) for cache in caches]
    for cache in caches:
        cache.crop_to(floor)
    _decode(stages, caches, torch.tensor([[99]]), 3)
    for cache, snapshot in zip(caches, snapshots, strict=True):
        cache.restore(snapshot)
    again = _decode(stages, caches, wanted[7].argmax(-1, keepdim=True), 3)
    onward = _decode(stages, [s.new_cache() for s in stages], PROMPT, 11)[8:]
    assert same(onward, again)


@contextmanager
def _broken(stage: StageRunner) -> Iterator[None]:
    """Have every op of a stage fail: in its last layer, or, of a tape, with all written."""

    def fail(*_args: object) -> None:
        raise ArithmeticError("broken kernel")

    step = stage.decode_step
    if step is None:
        last = list(stage._layers.children())[stage.stage.shard_end - 1]
        handle = last.register_forward_pre_hook(fail)
        yield
        handle.remove()
    else:
        assert isinstance(step, DecodeStep)
        stage.decode_step = replace(step, _step=lambda *given: fail(step._step(*given)))
        yield
        stage.decode_step = step


@pytest.mark.parametrize(
    ("model_type", "engine", "has_tape"),
    [
        ("llama", "fast", True),
        ("llama", "stock", False),
        ("gemma3_text", "fast", False),
        ("qwen3_next", "fast", False),
    ],
)
def test_a_failed_op_leaves_the_cache_as_it_was(
    model_type: str, engine: Engine, has_tape: bool, tmp_path: Path
) -> None:
    stages, caches = _stages(tmp_path, model_type, LoadOptions(engine=engine))
    assert (stages[0].decode_step is not None) == has_tape
    wanted = _decode(stages, caches, PROMPT, 6)
    for cache in caches:
        cache.crop_to(cache.seen - 1)
    held = caches[0].seen
    with _broken(stages[0]), pytest.raises(ArithmeticError):
        _step(stages, caches, torch.tensor([[99]]))
    assert caches[0].seen == held
    again = _decode(stages, caches, wanted[4].argmax(-1, keepdim=True), 1)
    assert same(wanted[5:], again)


def test_requests_run_in_turn_do_not_touch_each_other(tmp_path: Path) -> None:
    stages, first = _stages(tmp_path, "gemma3_text")
    second = [stage.new_cache() for stage in stages]
    other = (PROMPT + 17) % 160
    wanted = [
        _decode(stages, [s.new_cache() for s in stages], prompt, 6) for prompt in (PROMPT, other)
    ]
    x, y, found = PROMPT, other, ([], [])
    for _ in range(6):
        found[0].append(_step(stages, first, x))
        found[1].append(_step(stages, second, y))
        x, y = (logits[-1].argmax(-1, keepdim=True) for logits in found)
    assert [same(*pair) for pair in zip(wanted, found, strict=True)] == [True, True]


def test_chunked_prefill_equals_the_unsplit_models_own(tmp_path: Path) -> None:
    stages, caches = _stages(tmp_path, "gemma3_text")
    model = reference_model(tmp_path / "m")
    (whole,) = split_runners(tmp_path / "m", 6, 1)
    own = whole.new_cache()
    prompt = torch.arange(3, 43)[None]
    pairs = []
    for start in range(0, 40, 16):
        chunk = prompt[:, start : start + 16]
        pairs.append((_step(stages, caches, chunk), whole.forward(chunk, own, want="logits")))
    assert (model.config.num_hidden_layers, all(torch.equal(a, b) for a, b in pairs)) == (6, True)


def test_growing_past_the_first_capacity_changes_no_bit(tmp_path: Path) -> None:
    stages, caches = _stages(tmp_path, "llama")
    wanted = reference_logits(reference_model(tmp_path / "m"), single_prompt(160), steps=150)
    assert same(wanted, _decode(stages, caches, PROMPT, 151))


def test_a_cache_counts_what_it_holds(tmp_path: Path) -> None:
    stages, caches = _stages(tmp_path, "llama")
    _decode(stages, caches, PROMPT, 1)
    # 3 layers, keys and values, 2 heads of 16, room for 64 positions, 2 bytes
    assert [cache.size_bytes for cache in caches] == [3 * 2 * 2 * 16 * 64 * 2] * 2


def test_a_sliding_cache_stays_bounded(tmp_path: Path) -> None:
    (runner,) = split_runners(tiny_checkpoint(tmp_path / "m", "mistral"), 6, 1)
    cache = runner.new_cache()
    for start in range(0, 200, 20):
        runner.forward(torch.arange(start, start + 20)[None] % 160, cache, want="logits")
    # window 8, margin 64, one op of 20
    assert max(layer.keys.shape[-2] for layer in cache.layers) == 7 + 64 + 20
