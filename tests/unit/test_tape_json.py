"""A tape that was written as JSON does what it did before, or is not written."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tests.unit.test_tape import attend, direct, recorded
from worker.model.tape import CannotReplay, Entry, Later, Ref, Tape, merged
from worker.model.tape_json import from_json, to_json
from worker.model.tape_script import compiled


def through_json(tape: Tape, inputs: int, names: dict[int, str]) -> Tape:
    tensors = {names[id(t)]: t for t in tape.outside[inputs:] if id(t) in names}
    kept = json.loads(json.dumps(to_json(tape, inputs, names)))
    return from_json(kept, tape.outside[:inputs], tensors)


@torch.inference_mode()
def test_a_step_does_the_same_from_json() -> None:
    weight = torch.randn(8, 8)

    def step(x: torch.Tensor, store: torch.Tensor, position: int) -> torch.Tensor:
        return attend(x, store, position).to(torch.float64).to(torch.float32) @ weight

    tape = merged(recorded(step, 2)[0], recorded(step, 5, seed=1)[0], 2, (2, 5))
    read = through_json(tape, 2, {id(weight): "model.weight"})
    x, store = torch.arange(8.0)[None], torch.arange(128.0).view(16, 8).clone()
    found = [compiled(read, 2)([x, store], list(read.outside[2:]), 9), store]
    assert all(map(torch.equal, found, direct(step, 9)))


@torch.inference_mode()
def test_every_kind_of_argument_comes_back() -> None:
    values = [
        Ref(None, 0), Ref(3, 1), Later(-2), [1, [Later(0), None]], [], True, 0, 1.5, -math.inf,
        "gelu", None, torch.bfloat16, torch.strided, torch.contiguous_format, torch.device("cpu"),
    ]  # fmt: skip
    entry = Entry(torch.ops.aten.add.Tensor, tuple(values), {"dtype": torch.int64}, 2)
    read = through_json(Tape([entry], [torch.zeros(1)], Ref(0, 1)), 1, {}).entries[0]
    assert (read.op, list(read.args), read.named, read.results) == (
        torch.ops.aten.add.Tensor,
        values,
        {"dtype": torch.int64},
        2,
    )
    assert list(map(type, read.args)) == list(map(type, values))


@pytest.mark.parametrize("what", ["a table", "an op", "an argument"])
@torch.inference_mode()
def test_what_has_no_form_in_json_is_refused(what: str) -> None:
    op = torch.ops.prims.sin.default if what == "an op" else torch.ops.aten.sin.default
    value = 1j if what == "an argument" else Ref(None, 0)
    outside = [torch.zeros(1), torch.ones(3)] if what == "a table" else [torch.zeros(1)]
    tape = Tape([Entry(op, (value,), {}, None)], outside, Ref(0, 0))
    with pytest.raises(CannotReplay):
        to_json(tape, 1, {})
