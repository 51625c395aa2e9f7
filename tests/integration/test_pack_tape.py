"""A pack runs without the model's Python only where every bit has been seen to agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny import load_stages, tiny_checkpoint
from worker.model import amx_products, pack_attention, pack_tape
from worker.model.attend_text import AttendShape
from worker.model.attention import attention, is_known
from worker.model.kv import StageCache
from worker.model.load_options import Engine, LoadOptions
from worker.model.pack_tape import PackTape
from worker.model.run import StageRunner
from worker.model.steps import StepRunner, Steps
from worker.model.tape import CannotReplay, Tape
from worker.model.turned_linear import TurnedLinear

COUNT, START = 3, 5
torch.set_num_threads(1)


def stage(folder: Path, engine: Engine, model_type: str = "llama", **config: Any) -> StageRunner:
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, **config}
    tiny_checkpoint(folder, model_type, num_hidden_layers=2, head_dim=64, **sizes)
    (found,) = load_stages(folder, (0, 2), LoadOptions(engine=engine))
    return found


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> StageRunner:
    return stage(tmp_path_factory.mktemp("tape"), "fast")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageRunner]:
    yield stage(tmp_path_factory.mktemp("tape"), "stock")


class Decoding:
    """Requests that are decoded together and, on caches of their own, alone."""

    def __init__(self, runner: StageRunner, start: int = START) -> None:
        self.runner, self.steps = runner, StepRunner(runner)
        self.packed = [runner.new_cache() for _ in range(COUNT)]
        self.alone = [runner.new_cache() for _ in range(COUNT)]
        self._generator = torch.Generator().manual_seed(2)
        for i in range(COUNT):
            ids = self._ids(start + i)
            for cache in (self.packed[i], self.alone[i]):
                runner.forward(ids, cache)

    def step(self) -> bool:
        """Take one step; say whether everything is as alone."""
        ids = [self._ids(1) for _ in range(COUNT)]
        parts = [Steps(x, cache, choices=1) for x, cache in zip(ids, self.packed, strict=True)]
        found = self.steps.together(parts)
        same = []
        for x, cache, outputs in zip(ids, self.alone, found, strict=True):
            assert not isinstance(outputs, Exception)
            logits = self.runner.forward(x, cache, want="logits")
            same.append(torch.equal(logits, torch.cat(outputs.logits)))
        return all(same) and all(map(same_caches, self.packed, self.alone))

    @property
    def tapes(self) -> list[PackTape]:
        return list(self.steps.packs.tapes.values())

    def _ids(self, count: int) -> torch.Tensor:
        return torch.randint(3, 150, (1, count), generator=self._generator)


def same_caches(one: StageCache, other: StageCache) -> bool:
    pairs = [
        (a, b)
        for i in one.own_layers
        for a, b in zip(states(one.layers[i]), states(other.layers[i]), strict=True)
    ]
    return one.seen == other.seen and all(torch.equal(a, b) for a, b in pairs)


def states(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.keys, layer.values


def test_the_short_way_is_taken_from_the_fifth_pack_on_and_over_growing_caches(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, taken = Decoding(runner), []
    run = PackTape.run
    monkeypatch.setattr(PackTape, "run", lambda *args: [taken.append(1), run(*args)][1])
    found = []
    for _ in range(70):  # A cache grows at 64 and 96 positions.
        found.append(decoding.step())
    # compared; written down twice; proved; then taken
    assert (found, len(taken)) == ([True] * 70, 1 + 66)
    assert [tape.is_proved for tape in decoding.tapes] == [True]


def test_a_short_way_with_other_bits_is_refused(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = Decoding(runner)
    run = PackTape.run
    monkeypatch.setattr(PackTape, "run", lambda *args: run(*args) + 1)
    assert [decoding.step() for _ in range(6)] == [True] * 6
    assert [(tape.is_proved, tape.is_refused) for tape in decoding.tapes] == [(False, True)]


def test_a_short_way_that_fails_midway_leaves_it_to_the_long_one(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = Decoding(runner)
    assert [decoding.step() for _ in range(5)] == [True] * 5

    def fail(tape: PackTape, inputs: Any, members: Any) -> torch.Tensor:
        raise MemoryError("no room")

    monkeypatch.setattr(PackTape, "run", fail)
    assert decoding.step()
    monkeypatch.undo()
    assert decoding.step()


def test_what_was_written_down_is_made_shorter(
    fast: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[tuple[int, int]] = []
    shortened = pack_tape.shortened

    def watched(tape: Tape, inputs: Any, rows: int, **named: Any) -> Tape:
        found = shortened(tape, inputs, rows, **named)
        lengths.append((len(tape.entries), len(found.entries)))
        return found

    monkeypatch.setattr(pack_tape, "shortened", watched)
    decoding = Decoding(fast)
    # Each is given its memory anew: what an answer holds must not be written over.
    assert [decoding.step() for _ in range(8)] == [True] * 8
    assert [tape.is_proved for tape in decoding.tapes] == [True]
    ((before, after),) = lengths
    assert after < 0.8 * before


def test_products_whose_weights_lie_together_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Large enough that the weights of a decode step's products are put together.
    runner = stage(tmp_path, "fast", hidden_size=512, intermediate_size=1024)
    counts: list[tuple[int, int]] = []
    fused = pack_tape.fused

    def watched(tape: Tape, inputs: int, **named: Any) -> Tape:
        found = fused(tape, inputs, **named)
        counts.append((products(tape), products(found)))
        return found

    monkeypatch.setattr(pack_tape, "fused", watched)
    # Products on tiles stay apart.
    monkeypatch.setattr(amx_products, "has_tiles", lambda: False)
    decoding = Decoding(runner)
    assert [decoding.step() for _ in range(8)] == [True] * 8
    assert [tape.is_proved for tape in decoding.tapes] == [True]
    ((before, after),) = counts
    if any(isinstance(module, TurnedLinear) for module in runner.loaded.model.modules()):
        assert after <= before - 4


@pytest.mark.parametrize("start", [START, 500])
def test_rows_are_attended_by_code_of_our_own_where_it_has_the_bits(
    start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = stage(tmp_path, "fast", num_attention_heads=4, max_position_embeddings=1024)
    decoding, plans = Decoding(runner, start), []
    planned = pack_attention.plan_row
    monkeypatch.setattr(
        pack_attention, "plan_row", lambda *pair: [plans.append(1), planned(*pair)][1]
    )
    assert [decoding.step() for _ in range(70)] == [True] * 70
    assert [tape.is_proved for tape in decoding.tapes] == [True]
    shape = AttendShape(4, 1, 64, 0.125)
    uses = is_known() and attention(shape) is not None
    # proved once, then taken; of each layer and request
    assert len(plans) == (67 * 2 * COUNT if uses else 0)


def test_with_stock_kernels_torch_attends(runner: StageRunner) -> None:
    decoding = Decoding(runner)
    assert [decoding.step() for _ in range(8)] == [True] * 8
    assert [(tape.is_proved, tape.attends) for tape in decoding.tapes] == [(True, False)]


@pytest.mark.parametrize("what", ["room", "heads", "dtype", "apart"])
def test_no_plan_is_made_for_stores_of_another_kind(what: str) -> None:
    shape = AttendShape(4, 2, 64, 0.125)
    keys, values = torch.zeros(2, 1, 2, 10, 64, dtype=torch.bfloat16)
    assert pack_attention.plan_of(shape, [keys, values], [0], [10], 1, 4).shape == (1, 4, 5)
    other = {
        "room": values[:, :, :9],
        "heads": values[:, :1],
        "dtype": values.float(),
        "apart": values.transpose(2, 3).contiguous().transpose(2, 3),
    }[what]
    with pytest.raises(CannotReplay, match="keys and values"):
        pack_attention.plan_of(shape, [keys, other], [0], [10], 1, 4)


def products(tape: Tape) -> int:
    return sum(entry.op is torch.ops.aten.mm.default for entry in tape.entries)


def test_experts_are_never_taken_for_what_stays_the_same(tmp_path: Path) -> None:
    runner = stage(
        tmp_path,
        "stock",
        "olmoe",
        num_key_value_heads=2,
        intermediate_size=64,
        num_experts=64,
        num_experts_per_tok=2,
        norm_topk_prob=False,
    )
    steps = StepRunner(runner)
    generator = torch.Generator().manual_seed(1)

    def is_right(ids: torch.Tensor) -> bool:
        packed, alone = runner.new_cache(), runner.new_cache()
        for cache in (packed, alone):
            runner.forward(ids[:, :3], cache)
        found = steps.forward(ids[:, 3:7], packed)
        rows = [runner.forward(ids[:, i : i + 1], alone) for i in range(3, 7)]
        return torch.equal(found, torch.cat(rows, 1))

    # The same request several times, so that what was not written down is equal each time.
    same = torch.randint(3, 150, (1, 7), generator=generator)
    assert [is_right(same) for _ in range(5)] == [True] * 5
    others = [torch.randint(3, 150, (1, 7), generator=generator) for _ in range(3)]
    assert [is_right(ids) for ids in others] == [True] * 3


def test_two_packs_of_the_same_numbers_do_not_show_what_changes(runner: StageRunner) -> None:
    tape = PackTape()
    once, other = torch.ones(2), torch.zeros(2)
    for given, is_written in ((once, False), (once.clone(), False), (other, True)):
        with tape.writing([given], 4) as recording, recording.recorder:
            recording.output = given + 1
        assert tape.is_written is is_written


@pytest.mark.parametrize("fault", ["bits", "text"])
def test_where_the_shorter_form_fails_the_plain_one_is_taken(
    fault: str, runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = pack_tape.function_of
    made: list[str] = []

    def failing(source: str, functions: Any) -> Any:
        made.append(source)
        if len(made) > 1:
            return compiled(source, functions)
        if fault == "text":
            raise RuntimeError("no such op")
        run = compiled(source, functions)
        return lambda *given: run(*given) + 1

    monkeypatch.setattr(pack_tape, "function_of", failing)
    decoding = Decoding(runner)
    assert [decoding.step() for _ in range(8)] == [True] * 8
    assert [(tape.is_proved, tape.is_refused) for tape in decoding.tapes] == [(True, False)]
    assert len(made) == 2


def test_what_torch_cannot_compile_is_not_tried_again(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no such op")

    monkeypatch.setattr(pack_tape, "function_of", fail)
    decoding = Decoding(runner)
    assert [decoding.step() for _ in range(5)] == [True] * 5
    assert [(tape.is_proved, tape.is_refused) for tape in decoding.tapes] == [(False, True)]


def test_what_cannot_be_made_shorter_is_taken_as_it_is(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Tape:
        raise ValueError("no such form")

    monkeypatch.setattr(pack_tape, "shortened", fail)
    decoding = Decoding(runner)
    assert [decoding.step() for _ in range(6)] == [True] * 6
    assert [tape.is_proved for tape in decoding.tapes] == [True]
