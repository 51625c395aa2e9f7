"""Packed positions give the bits of one position after the other, whatever the architecture.

The oracle is plain transformers, decoding step by step with the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from tests.support.chain import Stage
from tests.support.tiny import load_stages, reference_model, tiny_checkpoint
from tools.arch_engine import bounds_for
from worker.model import kept_verdicts
from worker.model.kept_tapes import stage_kind
from worker.model.load_options import LoadOptions
from worker.model.pack import PackKind
from worker.model.packs import Packs
from worker.model.run import StageRunner
from worker.model.steps import StepOutputs, StepRunner, Steps
from worker.protocol.ops import EmbedAndForward, HiddenReply
from worker.protocol.schema import ErrorCode, ProtocolError
from worker.remembered import Remembered

PREFILL = 7
# 16 compared, 16 packed, 1 alone; and 16 tried, 1 alone.
PACKED, SINGLY = 33, 17
ARCHITECTURES = {
    "llama": PACKED,
    "qwen3": PACKED,
    "gemma2": PACKED,  # Soft-capped eager attention, every second window of 8.
    "gemma3_text": PACKED,
    "gpt_oss": PACKED,  # Sinks and experts.
    "mixtral": PACKED,
    "gpt2": PACKED,
    "deepseek_v3": SINGLY,  # Computes keys anew from what is cached.
    "jamba": SINGLY,  # A recurrent state.
    "gemma3n_text": SINGLY,  # Ids on every stage, layers that share keys.
}

torch.set_num_threads(1)


def is_exact(steps: StepRunner, size: int, *, is_mixed: bool = False) -> bool | None:
    """Say what was found out about packs of one request, or of several; None is nothing."""
    if size not in steps.packs.sizes:
        return False
    verdict = steps.packs.verdicts.get(PackKind(size, is_mixed, "hidden"))
    return None if verdict is None else verdict.is_exact


def ids_of(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, 150, (1, count), generator=generator)


def last_logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Prefill, then decode the rest step by step."""
    cache = DynamicCache(config=model.config)
    pieces = [ids[:, :PREFILL], *ids[:, PREFILL:].split(1, 1)]
    with torch.inference_mode():
        outputs = [model(input_ids=piece, cache=cache, logits_to_keep=1) for piece in pieces]
    logits: torch.Tensor = outputs[-1].logits[:, -1]
    return logits


class Walk:
    """A stage twice over: one cache filled as steps, one by single forwards."""

    def __init__(self, runner: StageRunner) -> None:
        self.runner = runner
        self.steps = StepRunner(runner)
        self.caches = runner.new_cache(), runner.new_cache()

    def hidden(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Run `x`, of the positions of `ids`, both ways; give the hidden states of all."""
        outputs: list[list[torch.Tensor]] = [[], []]
        for cache, found in zip(self.caches, outputs, strict=True):
            found.append(self.forward(x[:, :PREFILL], ids[:, :PREFILL], cache))
        rest, rest_ids = x[:, PREFILL:], ids[:, PREFILL:]
        tokens = rest_ids if self.runner.needs_tokens else None
        outputs[0].append(self.steps.forward(rest, self.caches[0], tokens=tokens))
        for i in range(rest.shape[1]):
            one = slice(i, i + 1)
            outputs[1].append(self.forward(rest[:, one], rest_ids[:, one], self.caches[1]))
        as_steps, singly = (torch.cat(found, 1) for found in outputs)
        assert torch.equal(as_steps, singly)
        return as_steps

    def forward(self, x: torch.Tensor, ids: torch.Tensor, cache: Any, **more: Any) -> torch.Tensor:
        """Run one forward, with the ids where the model needs them."""
        tokens = ids if self.runner.needs_tokens else None
        return self.runner.forward(x, cache, tokens=tokens, **more)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_steps_leave_what_decoding_leaves_on_every_slice(model_type: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, model_type)
    model = reference_model(folder)
    bounds = bounds_for(model.config, 6, 3)
    assert bounds is not None
    walks = [Walk(runner) for runner in load_stages(folder, bounds, LoadOptions())]
    count = ARCHITECTURES[model_type]
    ids = ids_of(PREFILL + count + 1)
    hidden, newest = ids[:, :-1], ids[:, -1:]
    for walk in walks:
        hidden = walk.hidden(hidden, ids[:, :-1])
        want: Any = "logits" if walk is walks[-1] else "hidden"
        newest = walk.forward(newest, ids[:, -1:], walk.caches[0], want=want)
    assert torch.equal(newest, last_logits(model, ids))
    assert [is_exact(walk.steps, 16) for walk in walks] == [count == PACKED] * 3


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("steps"), "llama")


class Counter:
    """Counts forwards of a stage by how many positions they take."""

    def __init__(self, runner: StageRunner) -> None:
        self.sizes: list[int] = []
        layer = runner.loaded.model.model.layers[0]
        layer.register_forward_pre_hook(lambda _layer, args: self.sizes.append(args[0].shape[1]))

    def taken(self) -> list[int]:
        sizes, self.sizes = self.sizes, []
        return sizes


def runner_of(folder: Path) -> StageRunner:
    # the fast engine takes a step without the hooks that count
    (runner,) = load_stages(folder, (0, 6), LoadOptions(engine="stock"))
    return runner


def test_a_size_is_compared_once_and_then_packed(llama: Path) -> None:
    runner = runner_of(llama)
    steps, counter, cache = StepRunner(runner), Counter(runner), runner.new_cache()
    ids = ids_of(47)
    taken = []
    for part in (ids[:, :7], ids[:, 7:23], ids[:, 23:47]):
        steps.forward(part, cache)
        taken.append(counter.taken())
    # The first position alone, then 6 compared in a pack of 16; 16 packed; 16 and 8 packed.
    assert taken == [[1, *[1] * 6, 16], [16], [16, 16]]
    assert [is_exact(steps, size) for size in (4, 16)] == [None, True]


def four_at_once(steps: StepRunner, runner: StageRunner, counter: Counter) -> list[torch.Tensor]:
    """Return what four requests get in a step of each, compared with each alone."""
    ids, caches = ids_of(20), [runner.new_cache() for _ in range(8)]
    for i, cache in enumerate(caches):
        runner.forward(ids[:, : 5 + i % 4], cache)
    counter.taken()
    parts = [Steps(ids[:, 10 + i : 11 + i], cache) for i, cache in enumerate(caches[:4])]
    found = steps.together(parts)
    taken = counter.taken()
    for part, outputs, cache in zip(parts, found, caches[4:], strict=True):
        assert isinstance(outputs, StepOutputs)
        assert torch.equal(outputs.hidden[0], runner.forward(part.x, cache))
    counter.sizes = taken
    return [outputs.hidden[0] for outputs in found if isinstance(outputs, StepOutputs)]


def test_what_was_found_out_is_remembered_and_one_request_compared_again(
    llama: Path, tmp_path: Path
) -> None:
    runner, remembered = runner_of(llama), Remembered(tmp_path)
    counter, taken = Counter(runner), []
    for _ in range(2):
        steps = StepRunner(runner, remembered)
        four_at_once(steps, runner, counter)
        taken.append(counter.taken())
        assert is_exact(steps, 4, is_mixed=True) is True
        four_at_once(steps, runner, counter)
        assert counter.taken() == [4]
    assert taken == [[1] * 4 + [4], [1, 4]]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_failure_that_passes_is_not_remembered(
    is_known: bool, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, remembered = runner_of(llama), Remembered(tmp_path)
    counter = Counter(runner)
    if is_known:
        four_at_once(StepRunner(runner, remembered), runner, counter)

    def fail(*_: Any, **named: Any) -> Any:
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(Packs, "_packed", fail)
        steps = StepRunner(runner, remembered)
        four_at_once(steps, runner, counter)
        assert is_exact(steps, 4, is_mixed=True) is False
    steps = StepRunner(runner, remembered)
    four_at_once(steps, runner, counter)
    assert is_exact(steps, 4, is_mixed=True) is True


def test_what_is_remembered_wrongly_is_found_out_and_forgotten(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered = Remembered(tmp_path)
    sound = runner_of(llama)
    four_at_once(StepRunner(sound, remembered), sound, Counter(sound))
    runner = runner_of(llama)
    mlp = runner.loaded.model.model.layers[5].mlp
    mlp.down_proj = Uneven(mlp.down_proj)
    # As if the same kind of stage had got other kernels, which nobody noticed.
    kind = stage_kind(sound)
    monkeypatch.setattr(kept_verdicts, "stage_kind", lambda runner: kind)
    counter = Counter(runner)
    for tried in ([1, 4, 1, 1, 1], [1] * 4):
        steps = StepRunner(runner, remembered)
        four_at_once(steps, runner, counter)
        assert counter.taken() == tried
        assert is_exact(steps, 4, is_mixed=True) is False


class Uneven(nn.Module):
    """A part that gives several positions other bits than one, as another kernel might."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add a little where there are several rows."""
        output: torch.Tensor = self.inner(x)
        return output + (1e-2 if x.shape[1] > 1 else 0)


def test_a_size_that_differs_is_never_packed(llama: Path) -> None:
    runner = runner_of(llama)
    mlp = runner.loaded.model.model.layers[5].mlp
    mlp.down_proj = Uneven(mlp.down_proj)
    steps, counter = StepRunner(runner), Counter(runner)
    caches = runner.new_cache(), runner.new_cache()
    ids = ids_of(40)
    singly = torch.cat([runner.forward(ids[:, i : i + 1], caches[0]) for i in range(40)], 1)
    counter.taken()
    # Each size is tried once, its positions also one by one.
    assert torch.equal(steps.forward(ids, caches[1]), singly)
    assert sorted(counter.taken()) == [*[1] * 40, 4, 16]
    assert [is_exact(steps, size) for size in (4, 16)] == [False] * 2
    steps.forward(ids[:, :20], caches[1])
    assert counter.taken() == [1] * 20


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
        {"rope_type": "default", "rope_theta": 1e4},
    ],
)
def test_rotary_tables_that_grow_with_the_sequence_are_not_packed(
    scaling: dict[str, Any], tmp_path: Path
) -> None:
    folder = tiny_checkpoint(tmp_path, "llama", rope_parameters=scaling)
    most = 16 if scaling["rope_type"] == "default" else 1
    assert StepRunner(runner_of(folder)).max_rows == most


@pytest.fixture(params=[0, 7])
def broken_at(request: pytest.FixtureRequest) -> Iterator[int]:
    yield request.param


def test_a_row_that_breaks_midway_leaves_the_cache(llama: Path, broken_at: int) -> None:
    stage = Stage(llama, 0, 6, max_context=64, threads=1)

    def op(tokens: list[int], position: int, **more: Any) -> HiddenReply:
        request = EmbedAndForward(request_id=1, tokens=tuple(tokens), position=position, **more)
        reply: HiddenReply = stage.call(request)
        return reply

    tokens = ids_of(24)[0].tolist()
    op(tokens, 0)
    good = op([5], 24)
    weight = stage.backend._runner.loaded.model.model.embed_tokens.weight
    with torch.no_grad():
        kept = weight[159].clone()
        weight[159] = torch.nan
    bad = [*tokens[:broken_at], 159, *tokens[broken_at:]]
    with pytest.raises(ProtocolError) as caught:
        op(bad, 12, as_steps=True)
    with torch.no_grad():
        weight[159] = kept
    assert caught.value.code is ErrorCode.INTERNAL
    assert op([5], 24) == good
