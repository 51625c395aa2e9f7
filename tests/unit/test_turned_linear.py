"""What a row gets from a turned linear does not depend on how many rows there are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from worker.model.row_kernels import cancelling
from worker.model.turned_linear import MOST_ROWS, TurnedLinear, turn_linears

needs_bfloat16_kernels = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no bfloat16 kernels"
)


def turned(inputs: int, outputs: int, *, bias: bool) -> tuple[nn.Linear, torch.Tensor]:
    """A turned linear and 33 rows for it, whose products cancel each other."""
    linear = nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)
    like = torch.empty(MOST_ROWS + 1, inputs, dtype=torch.bfloat16)
    rows, weight = cancelling(like, linear.weight.detach())
    linear.weight.data.copy_(weight)
    turn_linears(linear)
    return linear, rows


@needs_bfloat16_kernels
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("inputs", [256, 576, 5632])
@torch.inference_mode()
def test_each_row_gets_alone_what_it_gets_among_others(inputs: int, bias: bool) -> None:
    linear, rows = turned(inputs, 192, bias=bias)
    alone = torch.cat([linear(row) for row in rows.split(1)])
    packed = {count: linear(rows[:count]) for count in range(1, MOST_ROWS + 1)}
    assert type(linear) is TurnedLinear
    assert [n for n, found in packed.items() if not torch.equal(found, alone[:n])] == []


EVERY_COUNT = ("a matrix", "the last of each")


def laid_out(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same rows in every layout of which torch's own linear makes other ops."""
    sliced = rows.new_zeros(len(rows), 2, rows.shape[1])
    sliced[:, 1] = rows
    return {
        "a matrix": rows,
        "a matrix turned round": rows.t().contiguous().t(),
        "one batch": rows[None],
        "a slice of a matrix": sliced[:, 1],
        "the last of each": sliced[:, 1:],
        "a slice of more": sliced[:, 1:, None],
    }


@needs_bfloat16_kernels
@pytest.mark.parametrize(("inputs", "bias"), [(64, False), (64, True), (576, True), (5632, True)])
@torch.inference_mode()
def test_several_rows_get_what_stock_torch_gives_them(inputs: int, bias: bool) -> None:
    linear, cancelled = turned(inputs, 192, bias=bias)
    plain = cancelled.roll(1, -1)
    if bias:  # the first row's sums are taken away, so that what is left tells how they are rounded
        linear.bias.copy_(-functional.linear(plain[0], linear.weight))
    others = [
        (count, layout)
        for count in range(2, MOST_ROWS + 2)
        for rows in (cancelled, plain)
        for layout, x in laid_out(rows[:count]).items()
        if (layout in EVERY_COUNT or count in (2, 7, MOST_ROWS))
        and not torch.equal(linear(x), functional.linear(x, linear.weight, linear.bias))
    ]
    assert (type(linear), others) == (TurnedLinear, [])


@needs_bfloat16_kernels
@torch.inference_mode()
def test_a_bias_that_would_be_added_elsewhere_fails_the_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import worker.model.turned_linear as module

    monkeypatch.setattr(module, "_adds_bias_within", lambda *_: True)
    weight = torch.empty(192, 64, dtype=torch.bfloat16)
    found = [module.verdict_on(weight, has_bias=has_bias).is_exact for has_bias in (True, False)]
    assert found == [False, True]


@torch.inference_mode()
def test_what_has_other_kernels_is_left_alone() -> None:
    class Own(nn.Linear):
        pass

    others = nn.ModuleList([nn.Linear(64, 64), Own(64, 64, dtype=torch.bfloat16)])
    kinds = [type(module) for module in others]
    found = turn_linears(others)
    assert (found.count, found.left, [type(module) for module in others]) == (0, 0, kinds)


@needs_bfloat16_kernels
def test_a_shape_that_fails_its_trial_is_left_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import worker.model.turned_linear as module

    monkeypatch.setattr(module, "verdict_on", lambda *_, **__: module.Verdict(False))
    model = nn.Sequential(nn.Linear(64, 64, dtype=torch.bfloat16))
    found = turn_linears(model)
    assert type(model[0]) is nn.Linear
    assert found.notes[0].startswith("1 of 1 linears keep torch's own kernels")
