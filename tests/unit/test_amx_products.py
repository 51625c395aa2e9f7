"""Products by code of our own give the bits of torch's, or are not used."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from worker.model import amx_products
from worker.model.amx_products import ROWS, AmxProduct, has_tiles
from worker.model.native_ops import NoNativeOps, native_op
from worker.model.tape import CannotReplay

SHAPES = ((64, 576), (96, 1536), (576, 576), (2048, 2048), (96, 5632), (4096, 64))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def is_used() -> bool:
    """Whether a shape that is known to fit has a product: the processor has tiles, oneDNN too."""
    return has_tiles() and bool(amx_products.amx_products([weight_of(128, 576)]))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def weight_of(outputs: int, inputs: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(outputs + inputs)
    spread = torch.exp2(torch.randint(-9, 9, (outputs, inputs), generator=generator).float())
    return (torch.randn(outputs, inputs, generator=generator) * spread).bfloat16()


def multiplied(product: AmxProduct, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return `[rows, outputs]`."""
    result = torch.full((len(rows), len(weight)), 7.0, dtype=torch.bfloat16)
    product.multiply(weight, rows, result)
    return result


def torchs(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return what torch does: one row and several have other kernels."""
    if len(rows) == 1:
        return torch.mv(weight, rows[0])[None]
    return torch.mm(weight, rows.t()).t().contiguous()


def test_where_torch_uses_tiles_so_do_we() -> None:
    uses = torch.backends.cpu.get_cpu_capability() == "AVX512" and has_tiles()
    assert is_used() is (uses and "ONEDNN_MAX_CPU_ISA" not in os.environ)


@pytest.mark.parametrize("count", ROWS)
def test_each_product_has_the_bits_of_torch(threads: int, count: int) -> None:
    weights = [weight_of(*shape) for shape in SHAPES]
    with torch.inference_mode():
        found = amx_products.amx_products(weights, count)
        assert set(found) == ({w.shape for w in weights} if is_used() else set())
        for weight in weights if found else ():
            rows = weight_of(count, weight.shape[1])
            product = multiplied(found[weight.shape], weight, rows)
            assert same_bits(product, torchs(weight, rows))
            for row, result in zip(rows, product, strict=True):
                assert same_bits(torch.mv(weight, row), result)
            # oneDNN's own kernels use the same tiles in between, in forms of their own
            many = weight_of(40, weight.shape[1])
            before = functional.linear(many, weight)
            assert same_bits(multiplied(found[weight.shape], weight, rows), product)
            assert torch.equal(functional.linear(many, weight), before)


@pytest.mark.parametrize("count", ROWS)
def test_what_is_no_number_or_too_large_stays_so(count: int) -> None:
    weight = torch.eye(64).repeat(2, 1).bfloat16()
    found = amx_products.amx_products([weight], count)
    assert bool(found) is is_used()
    odd = torch.tensor(
        [float("nan"), float("inf"), -float("inf"), 3.3e38, 1e-40], dtype=torch.float
    )
    for value in odd.bfloat16() if found else ():
        rows = torch.ones(count, 64, dtype=torch.bfloat16)
        rows[-1, 5] = value
        product = multiplied(found[weight.shape], weight, rows)
        assert same_bits(product, torchs(weight, rows))


def test_a_product_is_never_laid_over_other_numbers_of_columns() -> None:
    weight, product = weight_of(128, 64), AmxProduct(0, 4)
    assert product.form(weight, weight_of(4, 64).t()).shape == (128, 4)
    for columns in (weight_of(2, 64).t(), weight_of(8, 64).t()):
        with pytest.raises(CannotReplay, match="columns for a product of 4"):
            product.form(weight, columns)


@pytest.mark.parametrize("rows", [16, 1])
def test_wide_products_need_no_more_stack_than_others(rows: int) -> None:
    weight = weight_of(64, 16384)
    found = amx_products.amx_products([weight], rows)
    given, results = weight_of(rows, 16384), []

    def multiply() -> None:
        results.extend(multiplied(product, weight, given) for product in found.values())

    before = threading.stack_size(128 << 10)
    try:
        thread = threading.Thread(target=multiply)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert [same_bits(result, torchs(weight, given)) for result in results] == [True] * len(found)


@pytest.mark.parametrize("count", [3, 32])
def test_other_numbers_of_rows_are_left_to_torch(count: int) -> None:
    assert amx_products.amx_products([weight_of(128, 576)], count) == {}


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(144, 576, dtype=torch.bfloat16),
        torch.zeros(128, 592, dtype=torch.bfloat16),
        torch.zeros(128, 576),
        torch.zeros(128, 1152, dtype=torch.bfloat16)[:, ::2],
    ],
    ids=["outputs", "inputs", "float32", "apart"],
)
def test_weights_of_other_forms_are_left_to_torch(weight: torch.Tensor) -> None:
    assert amx_products.amx_products([weight]) == {}


@pytest.mark.parametrize("lacks", ["tiles", "compiler"])
def test_where_something_lacks_torch_does_it(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NoNativeOps("no compiler")

    if lacks == "tiles":
        monkeypatch.setattr(amx_products, "has_tiles", lambda: False)
    else:
        monkeypatch.setattr(amx_products, "_code", fail)
    assert amx_products.amx_products([weight_of(128, 576)]) == {}


@pytest.mark.parametrize(("name", "count"), [("mv", 1), ("mm", 4)])
def test_a_product_with_other_bits_is_not_used(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(weight), *rows.shape[1:], dtype=torch.bfloat16)

    monkeypatch.setattr(torch, name, other)
    assert amx_products.amx_products([weight_of(128, 576)], count) == {}


def test_an_op_of_any_number_of_tensors_is_made_once() -> None:
    assert native_op(2) is native_op(2)
    assert str(native_op(4)._schema).count("Tensor") == 4
