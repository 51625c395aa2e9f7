"""Which ops may take several rows at once: those that give each row what it gets alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from worker.model.row_kernels import RowKernels
from worker.model.row_ops import NotPackable, RowOps

ROWS = 4
torch.set_num_threads(1)


def left_to_right(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply and add up in order, in float32."""
    return (x.float() @ weight.float().t()).to(x.dtype)


def in_halves_where_many(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Add up in another order where there are several rows, as some kernels do."""
    if len(x) == 1:
        return left_to_right(x, weight)
    half = x.shape[1] // 2
    parts = [x[:, i].float() @ weight[:, i].float().t() for i in (slice(half), slice(half, None))]
    return (parts[0] + parts[1]).to(x.dtype)


def alone(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply row by row, whatever is asked."""
    return torch.cat([left_to_right(row, weight) for row in x.split(1)])


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


@pytest.mark.parametrize(("product", "is_exact"), [(in_halves_where_many, False), (alone, True)])
def test_another_order_of_adding_is_seen_though_results_seldom_show_it(
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], is_exact: bool
) -> None:
    x, weight = random(ROWS, 256), random(64, 256, seed=1)
    assert (product(x, weight) != alone(x, weight)).float().mean() < 0.02
    assert RowKernels().are_exact("linear", product, x, weight, 0) is is_exact


@pytest.mark.parametrize("name", ["linear", "mm"])
@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("columns", [8, 64, 200])
def test_weights_are_tried_in_their_own_layout(name: str, is_turned: bool, columns: int) -> None:
    x, weight = random(ROWS, 64), random(columns, 64)
    if is_turned:
        weight = weight.t().contiguous().t()
    given, strides = (weight if name == "linear" else weight.t()), set()

    def product(way: Callable[..., torch.Tensor], x: torch.Tensor, by: torch.Tensor) -> Any:
        strides.add(by.stride())
        return way(x, by if name == "linear" else by.t())

    verdicts = [
        RowKernels().are_exact(name, partial(product, way), x, given, 0)
        for way in (alone, in_halves_where_many)
    ]
    assert (verdicts, strides) == ([True, False], {given.stride()})


def added_last(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Round a product of several rows before a bias is added, as is done for slices."""
    if len(x) > 1:
        return alone(x, weight) + bias
    return (x.float() @ weight.float().t() + bias.float()).to(x.dtype)


def test_a_sum_that_is_rounded_before_its_bias_is_seen() -> None:
    given = random(ROWS, 64), random(8, 64)
    product = lambda x, weight, bias: alone(x, weight) + bias  # noqa: E731
    found = [
        RowKernels().are_exact("linear", way, *given, 0, random(8)) for way in (added_last, product)
    ]
    assert found == [False, True]


def test_a_verdict_is_found_once() -> None:
    calls = []

    def counted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return alone(x, weight)

    kernels = RowKernels()
    for _ in range(2):
        kernels.are_exact("linear", counted, random(ROWS, 8), random(8, 8), 0)
    assert calls == [ROWS, *[1] * ROWS]


@torch.inference_mode()
def within(act: Callable[[], torch.Tensor], kernels: RowKernels | None = None) -> torch.Tensor:
    with RowOps(ROWS, kernels or RowKernels()):
        return act()


@pytest.mark.parametrize("bias", [None, random(64, seed=3)])
@pytest.mark.parametrize("width", [8, 64, 256])
def test_products_give_the_bits_of_single_rows(bias: torch.Tensor | None, width: int) -> None:
    x, weight = random(1, ROWS, width), random(64, width, seed=2)
    rows = [F.linear(x[:, i : i + 1], weight, bias) for i in range(ROWS)]
    assert torch.equal(within(partial(F.linear, x, weight, bias)), torch.cat(rows, 1))
    sliced = random(1, ROWS, 2 * width)[..., :width].copy_(x)
    assert torch.equal(within(partial(F.linear, sliced, weight, bias)), torch.cat(rows, 1))


@pytest.mark.parametrize("width", [4, 64, 100])
@pytest.mark.parametrize(
    "function",
    [torch.sigmoid, F.softplus, F.silu, lambda x: x.softmax(-1), lambda x: x.mean(-1, True)],
)
def test_rounded_functions_give_the_bits_of_single_rows(
    function: Callable[[torch.Tensor], torch.Tensor], width: int
) -> None:
    x = random(1, ROWS, width).float()
    rows = [function(x[:, i : i + 1].clone()) for i in range(ROWS)]
    assert torch.equal(within(partial(function, x)), torch.cat(rows, 1))


def test_the_root_that_norms_take_is_the_same_for_one_number_as_for_many() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2000, generator=generator) * torch.exp2(
        torch.randint(-30, 12, (2000,), generator=generator).float()
    )
    assert torch.equal(x.rsqrt(), torch.cat([one.rsqrt() for one in x.split(1)]))


def test_ops_of_a_single_row_are_left_alone() -> None:
    ops = RowOps(ROWS, RowKernels())
    with ops, ops.paused():
        assert random(1, 3, 8).sort(1)[0].shape == (1, 3, 8)


def test_what_went_row_by_row_is_told() -> None:
    ops, x = RowOps(ROWS, RowKernels()), random(1, ROWS, 64)
    with torch.inference_mode(), ops:
        F.silu(x)
        assert not ops.rounds_apart
        x.float().mean(-1, True).exp()
    assert (ops.rounds_apart, ops.uneven) == (True, set())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 0)[0],
        lambda x: x[x > 0],
        lambda x: x.mean(1),
        lambda x: x.cumsum(1),
        lambda x: x @ x.transpose(1, 2),
        lambda x: x.softmax(1),
        lambda x: F.conv1d(x, x.new_ones(ROWS, ROWS, 3)),
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: x.sort(1)[0],
    ],
)
def test_what_lets_rows_see_each_other_is_refused(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(NotPackable):
        within(partial(function, random(1, ROWS, 64)))


def test_rows_that_cannot_be_told_from_heads_are_refused() -> None:
    x = random(1, ROWS, ROWS, 16)
    with pytest.raises(NotPackable, match=r"\[1, 4, 4, 16\]"):
        within(partial(torch.sigmoid, x))
