"""Products by rounded weights: the bits of the rule, whatever the processor can do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from tests.support.rounded import Int4, Int8
from worker.model.lane_op import ROUNDED_LINEAR, op_of_step
from worker.model.lane_program import LaneProgram
from worker.model.lane_text import INT4, INT8, Form
from worker.model.tape import TapeRecorder, merged
from worker.model.tape_buffers import buffered, buffered_alike
from worker.model.tape_script import compiled
from worker.model.weight_only import Int4Linear, Int8Linear, WeightOnlyLinear

AVX2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2", "fma", "bmi", "bmi2")
PROCESSORS = (None, AVX2, ())
KINDS = {"int8": (INT8, Int8, Int8Linear), "int4": (INT4, Int4, Int4Linear)}
OUTPUTS, INPUTS = 100, 160


def packed(kind: str) -> tuple[Form, nn.Module, WeightOnlyLinear]:
    form, rule, layer = KINDS[kind]
    linear = nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.bfloat16)
    found = layer(OUTPUTS, INPUTS, None)
    found.hold(*found.quantize(linear.weight.detach()))
    return form, rule(linear), found


def rows(count: int) -> torch.Tensor:
    """Numbers of all sizes; a row of zeros, one that is all but nothing, and a huge one."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.randint(-9, 9, (count, INPUTS), generator=generator)
    x = torch.randn(count, INPUTS, generator=generator) * torch.exp2(spread)
    x[1] = 0
    x[2] *= 1e-36
    x[3] *= 1e30
    return x.bfloat16()


@pytest.mark.parametrize("features", PROCESSORS, ids=["this", "avx2", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_the_bits_of_the_rule_on_every_processor_alone_and_together(
    kind: str, features: Sequence[str] | None
) -> None:
    form, rule, layer = packed(kind)
    x = rows(16)
    with torch.inference_mode():
        wanted = rule(x)
        program = LaneProgram(form, features)
        for count in (16, 7, 3, 1):
            found = program.step(x[:count], layer.weight, layer.scales, 1 + count % 2)
            assert torch.equal(found[:, :OUTPUTS], wanted[:count]), count


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_weights_are_the_rounded_weights(kind: str) -> None:
    form, rule, layer = packed(kind)
    program = LaneProgram(form)
    found = torch.empty(INPUTS, 64, dtype=torch.bfloat16)
    program.weights(layer.weight, found, 64, 1)
    scales = 1.0 if form.has_scales else layer.scales[64:OUTPUTS, None]
    few = found.T[: OUTPUTS - 64].float() * scales
    assert torch.equal(few.bfloat16(), rule.weights[64:].bfloat16())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_spoils_its_own_row_alone(kind: str) -> None:
    form, rule, layer = packed(kind)
    x = rows(4)
    wanted = rule(x)
    x[0, 3], x[2, 40] = float("inf"), float("nan")
    found = LaneProgram(form).step(x, layer.weight, layer.scales, 1)[:, :OUTPUTS]
    assert torch.equal(found[[1, 3]], wanted[[1, 3]])
    assert bool(found[[0, 2]].isnan().all())


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("outputs", [128, OUTPUTS])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_tape_starts_them_without_python_where_no_output_is_filled_up(
    kind: str, outputs: int, count: int
) -> None:
    _, _, layer = KINDS[kind]
    linear = nn.Linear(INPUTS, outputs, bias=False, dtype=torch.bfloat16)
    found = layer(outputs, INPUTS, None)
    found.hold(*found.quantize(linear.weight.detach()))
    x = rows(16)[:count, None]
    recorder = TapeRecorder([x])
    with recorder:
        output = found(x) * 2
    tape = buffered_alike(recorder.tape(output), [x])
    names = [entry.op for entry in tape.entries]
    assert (op_of_step() in names, ROUNDED_LINEAR in names) == (outputs == 128, outputs != 128)
    other = x.flip(-1).contiguous()
    run = compiled(tape, 1)
    for given in (x, other, x):
        assert torch.equal(run([given], list(tape.outside[1:]), 0), found(given) * 2)


@torch.inference_mode()
def test_rows_that_become_more_with_the_position_stay_torchs() -> None:
    found = Int4Linear(128, INPUTS, None)
    found.hold(*found.quantize(torch.randn(128, INPUTS).bfloat16()))
    store = rows(16)[None]

    def step(held: torch.Tensor, at: int) -> torch.Tensor:
        return found(held[:, : at + 1]) * 2

    tapes = []
    for position in (2, 5):
        recorder = TapeRecorder([store])
        with recorder:
            output = step(store, position)
        tapes.append(recorder.tape(output))
    tape = buffered(merged(tapes[0], tapes[1], 1, (2, 5)), {2: [store], 5: [store]}, 1)
    assert [entry.op for entry in tape.entries if entry.op in (ROUNDED_LINEAR, op_of_step())] == [
        ROUNDED_LINEAR
    ]
    run = compiled(tape, 1)
    for at in (0, 7, 15):
        assert torch.equal(run([store], list(tape.outside[1:]), at), step(store, at))
