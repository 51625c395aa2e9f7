"""A tape does again what was done, at any position, or is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from worker.model.pages import LEAST_BYTES, empty_tensor
from worker.model.tape import CannotReplay, Tape, TapeRecorder, merged
from worker.model.tape_fuse import fused, without_twins
from worker.model.tape_script import compiled, script

Step = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def recorded(step: Step, position: int, *, seed: int = 0) -> tuple[Tape, torch.Tensor]:
    """The tape of a step on numbers drawn at random, and what the step gave."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 8, generator=generator)
    store = torch.randn(16, 8, generator=generator)
    recorder = TapeRecorder([x, store])
    with recorder:
        output = step(x, store, position)
    return recorder.tape(output), output


def replayed(step: Step, position: int) -> list[torch.Tensor]:
    """What the tape of positions 2 and 5 gives and writes at another."""
    tape = merged(recorded(step, 2)[0], recorded(step, 5, seed=1)[0], 2, (2, 5))
    tape = fused(without_twins(tape, 2), 2)
    x, store = torch.arange(8.0)[None], torch.arange(128.0).view(16, 8).clone()
    return [compiled(tape, 2)([x, store], list(tape.outside[2:]), position), store]


def direct(step: Step, position: int) -> list[torch.Tensor]:
    """What the step itself does with the same numbers."""
    x, store = torch.arange(8.0)[None], torch.arange(128.0).view(16, 8).clone()
    return [step(x, store, position), store]


def attend(x: torch.Tensor, store: torch.Tensor, position: int) -> torch.Tensor:
    """Write a row and read all rows so far, as attention does."""
    store[position : position + 1] = x
    seen = store[: position + 1]
    halves = (x.float() * torch.arange(position, position + 1)).chunk(2, -1)
    low, _ = torch.topk(torch.cat(halves, -1), 3)
    return torch.softmax(x @ seen.t(), -1) @ seen + low.sum()


@pytest.mark.parametrize("position", [0, 3, 9, 15])
@torch.inference_mode()
def test_a_tape_of_two_positions_does_any_other(position: int) -> None:
    pairs = zip(replayed(attend, position), direct(attend, position), strict=True)
    assert all(torch.equal(found, wanted) for found, wanted in pairs)


@torch.inference_mode()
def test_layers_that_are_alike_are_one_function_and_give_the_same() -> None:
    weights = [torch.randn(8, 8) for _ in range(5)]

    def layers(x: torch.Tensor, store: torch.Tensor, position: int) -> torch.Tensor:
        table = torch.arange(position, position + 1) * 0.5
        for weight in weights:
            x = attend(x * 0.25, store, position).sigmoid() @ weight + table
        return x.sum(-1)

    tape = merged(recorded(layers, 2)[0], recorded(layers, 5, seed=1)[0], 2, (2, 5))
    source = script(without_twins(tape, 2), 2)
    calls = source.count("= part0(")
    assert (source.count("def "), calls >= len(weights) - 2) == (2, True)
    pairs = zip(replayed(layers, 9), direct(layers, 9), strict=True)
    assert all(torch.equal(found, wanted) for found, wanted in pairs)


@torch.inference_mode()
def test_what_follows_from_the_numbers_is_refused() -> None:
    steps: dict[str, Step] = {
        "a choice": lambda x, _store, _at: x + 1 if x.sum() > 0 else x,
        "some of them": lambda x, _store, _at: x[x > 0],
        "where they are": lambda x, _store, _at: x.nonzero(),
        "their number": lambda x, _store, at: x * [1.5, 2.5, 3.0, 4.0, 5.0, 7.0][at],
        "other ops": lambda x, _store, at: x.exp() if at > 3 else x.sin(),
        "a new table": lambda x, _store, at: x + torch.tensor([float(at)]),
    }
    refused = []
    for name, step in steps.items():
        try:
            merged(recorded(step, 2)[0], recorded(step, 5)[0], 2, (2, 5))
        except CannotReplay:
            refused.append(name)
    assert refused == list(steps)


@torch.inference_mode()
def test_products_of_one_row_become_one_and_give_the_same() -> None:
    weights = [torch.randn(rows, 8).to(torch.bfloat16) for rows in (4, 6, 2)]
    kept = [weight.clone() for weight in weights]

    def project(x: torch.Tensor, _store: torch.Tensor, _at: int) -> torch.Tensor:
        row = x.to(torch.bfloat16)
        # as a linear that is turned round takes its row
        parts = [torch.mv(weight, row.reshape(1, 8)[0]) for weight in weights]
        return torch.cat(parts[::-1])

    wanted = direct(project, 3)[0]
    tape, _ = recorded(project, 3)
    short = fused(without_twins(tape, 2), 2)
    names = [entry.op.overloadpacket.__name__ for entry in short.entries]
    x = torch.arange(8.0)[None]
    found = compiled(short, 2)([x, torch.zeros(16, 8)], list(short.outside[2:]), 3)
    assert names.count("mv") == 1
    assert torch.equal(found, wanted)
    assert all(map(torch.equal, weights, kept))
    assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1


@torch.inference_mode()
def test_weights_that_follow_each_other_already_become_one_where_they_lie() -> None:
    block = empty_tensor((LEAST_BYTES // 2,), torch.bfloat16).normal_()
    weights = [part.view(-1, 8) for part in block[: 12 * 8].split([32, 48, 16])]
    lay = [weight.data_ptr() for weight in weights]

    def project(x: torch.Tensor, _store: torch.Tensor, _at: int) -> torch.Tensor:
        row = x.to(torch.bfloat16)
        return torch.cat([torch.mv(weight, row.reshape(1, 8)[0]) for weight in weights])

    wanted = direct(project, 3)[0]
    short = fused(without_twins(recorded(project, 3)[0], 2), 2)
    x = torch.arange(8.0)[None]
    found = compiled(short, 2)([x, torch.zeros(16, 8)], list(short.outside[2:]), 3)
    names = [entry.op.overloadpacket.__name__ for entry in short.entries]
    assert (names.count("mv"), [weight.data_ptr() for weight in weights]) == (1, lay)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(("is_same", "products"), [(True, 1), (False, 3)])
@torch.inference_mode()
def test_products_with_a_bias_become_one_where_that_gives_the_same(
    is_same: bool, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_same:
        monkeypatch.setattr(torch, "equal", lambda *_: False)
    pairs = [(torch.randn(n).bfloat16(), torch.randn(n, 8).bfloat16()) for n in (4, 6, 2)]

    def project(x: torch.Tensor, _store: torch.Tensor, _at: int) -> torch.Tensor:
        row = x.to(torch.bfloat16).reshape(8)
        return torch.cat([torch.addmv(bias, weight, row) for bias, weight in pairs])

    wanted = direct(project, 3)[0]
    short = fused(without_twins(recorded(project, 3)[0], 2), 2)
    x = torch.arange(8.0)[None]
    found = compiled(short, 2)([x, torch.zeros(16, 8)], list(short.outside[2:]), 3)
    names = [entry.op.overloadpacket.__name__ for entry in short.entries]
    assert (names.count("addmv"), found.tolist()) == (products, wanted.tolist())
