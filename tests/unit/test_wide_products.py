"""Products of many rows by code of our own give the bits of torch's, or are not used."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from worker.model import wide_products, wide_program, wide_trial
from worker.model.row_kernels import cancelling
from worker.model.turned_linear import TurnedLinear, turn_linears
from worker.model.wide_products import LEAST_ROWS, MOST_ROWS, WideProducts
from worker.model.wide_program import WideProgram, can_be_wide
from worker.model.wide_trial import torchs_piece

# outputs, inputs: of one piece and of several, with a last one that is shorter
SHAPES = ((192, 576), (576, 1536), (1536, 576), (256, 2048), (2048, 2048), (2048, 5632), (896, 896))
ROWS = (33, 44, 64, 65, 127, 200, 256)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


@pytest.fixture
def program() -> WideProgram:
    """Of one thread, or of as many as `threads` says where a test has that before."""
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        pytest.skip("oneDNN is told what to use")
    found = wide_program.wide_program(torch.get_num_threads())
    if found is None:
        pytest.skip("this processor has no tiles")
    return found


def same_bits(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and torch.equal(one.view(torch.int16), other.view(torch.int16))


def numbers(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + rows + columns)
    spread = torch.exp2(torch.randint(-9, 9, (rows, columns), generator=generator).float())
    return (torch.randn(rows, columns, generator=generator) * spread).bfloat16()


def test_where_torch_uses_tiles_so_do_we() -> None:
    uses = torch.backends.cpu.get_cpu_capability() == "AVX512" and can_be_wide()
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        pytest.skip("oneDNN is told what to use")
    product = WideProducts().multiply(numbers(64, 576), numbers(192, 576))
    assert (product is not None) is uses


@pytest.mark.parametrize("shape", SHAPES)
@torch.inference_mode()
def test_each_product_has_the_bits_of_torch(
    shape: tuple[int, int], threads: int, program: WideProgram
) -> None:
    wide, weight = WideProducts(), numbers(*shape)
    found = {}
    for rows in ROWS:
        x = numbers(rows, shape[1])
        product = wide.multiply(x, weight)
        found[rows] = product is None or same_bits(product, functional.linear(x, weight))
        # numbers of which little is left show the order of the sums in nearly every result
        values, weights = cancelling(x, weight)
        product = wide.multiply(values, weights)
        wanted = functional.linear(values, weights)
        found[-rows] = product is None or same_bits(product, wanted)
    assert [rows for rows, is_same in found.items() if not is_same] == []
    used = [piece is not None for piece in wide._pieces.values()]
    # with several threads torch may divide the inputs among them
    assert all(used) if threads == 1 else sum(used) > len(ROWS) // 2


@settings(max_examples=60, deadline=None)
@given(
    tiles=st.tuples(st.integers(1, 12), st.integers(1, 70)),
    rows=st.integers(LEAST_ROWS, MOST_ROWS),
    piece=st.integers(1, 80),
    seed=st.integers(0, 99),
)
def test_any_pieces_are_added_up_one_after_the_other(
    tiles: tuple[int, int], rows: int, piece: int, seed: int
) -> None:
    program = wide_program.wide_program(1)
    if program is None:
        pytest.skip("this processor has no tiles")
    outputs, inputs = 16 * tiles[0], 32 * tiles[1]
    x, weight = numbers(rows, inputs, seed), numbers(outputs, inputs, seed)
    wanted = torch.zeros(rows, outputs)
    for sums in pieces_of(x, weight, 32 * piece):
        wanted += sums
    assert same_bits(program.multiply(x, weight, 32 * piece), wanted.bfloat16())


def pieces_of(x: torch.Tensor, weight: torch.Tensor, piece: int) -> list[torch.Tensor]:
    """Return the float32 sums of each piece of the inputs."""
    parts = zip(x.split(piece, 1), weight.split(piece, 1), strict=True)
    return [by_tiles(one, other) for one, other in parts]


def by_tiles(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return float32 sums as `tdpbf16ps` takes them, tile by tile."""
    sums = torch.zeros(len(x), len(weight))
    for begin in range(0, x.shape[1], 32):
        a, b = x[:, begin : begin + 32].double(), weight[:, begin : begin + 32].double()
        even, odd = torch.zeros_like(sums), torch.zeros_like(sums)
        for k in range(0, 32, 2):
            even = (even.double() + a[:, k, None] * b[None, :, k]).float()
            odd = (odd.double() + a[:, k + 1, None] * b[None, :, k + 1]).float()
        sums += even + odd
    return sums


@pytest.mark.parametrize("inputs", [64, 2048])
@torch.inference_mode()
def test_what_is_no_number_or_too_large_stays_so(inputs: int, program: WideProgram) -> None:
    wide = WideProducts()
    weight = torch.eye(64).repeat(3, inputs // 64).bfloat16()
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 3.3e38, 1e-40, -0.0])
    for value in odd.bfloat16():
        x = torch.ones(40, inputs, dtype=torch.bfloat16)
        x[7, 5] = x[8, -5] = value
        x[38, ::2] = value
        x[39] = value
        product = wide.multiply(x, weight)
        assert product is not None
        # which NaN it is of two is left open
        wanted = functional.linear(x, weight).nan_to_num(0.5, float("inf"), -float("inf"))
        assert same_bits(product.nan_to_num(0.5, float("inf"), -float("inf")), wanted)
        assert torch.equal(product.isnan(), functional.linear(x, weight).isnan())


@pytest.mark.parametrize("rows", [33, 50, 64, 256])
def test_nothing_is_read_or_written_beside_what_is_given(rows: int, program: WideProgram) -> None:
    """Where a page behind, or before, may not be touched the process would die."""
    x, weight = numbers(rows, 576), numbers(192, 576)
    wanted = program.multiply(x, weight, 288)
    for at_end in (False, True):
        with guarded(x, at_end) as own_x, guarded(weight, at_end) as own_weight:
            assert same_bits(program.multiply(own_x, own_weight, 288), wanted)


@contextmanager
def guarded(tensor: torch.Tensor, at_end: bool) -> Iterator[torch.Tensor]:
    """Give a copy at the very begin or end of memory that has forbidden pages around it."""
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    size = tensor.nbytes
    room = -(-size // page) * page
    block = mmap.mmap(-1, room + 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(block))
    skipped = page + (room - size if at_end else 0)
    own = torch.frombuffer(block, dtype=tensor.dtype, count=tensor.numel(), offset=skipped)
    own = own.view(tensor.shape).copy_(tensor)
    edges = [ctypes.c_void_p(begin), ctypes.c_void_p(begin + page + room)]
    try:
        for edge in edges:
            assert libc.mprotect(edge, page, 0) == 0
        yield own
    finally:
        for edge in edges:
            assert libc.mprotect(edge, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0


@torch.inference_mode()
def test_nothing_is_kept_from_earlier_rows(program: WideProgram) -> None:
    weight, more = numbers(192, 576), numbers(256, 576, seed=1)
    alone = [program.multiply(more[:rows].contiguous(), weight, 288).clone() for rows in (33, 64)]
    program.multiply(torch.full((256, 576), float("nan"), dtype=torch.bfloat16), weight, 288)
    again = [program.multiply(more[:rows].contiguous(), weight, 288) for rows in (33, 64)]
    assert all(map(same_bits, again, alone))
    assert same_bits(alone[1][:33], alone[0])


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (numbers(32, 576), numbers(192, 576)),
        (numbers(257, 576), numbers(192, 576)),
        (numbers(64, 576), numbers(200, 576)),
        (numbers(64, 560), numbers(192, 560)),
        (numbers(64, 576), numbers(64, 576)),
        (numbers(64, 1152), numbers(192, 576)),
        (numbers(64, 576).float(), numbers(192, 576)),
        (numbers(64, 576).half(), numbers(192, 576).half()),
        (numbers(64, 576).to("meta"), numbers(192, 576)),
        (numbers(64, 1152)[:, ::2], numbers(192, 576)),
        (numbers(64, 576), numbers(576, 192).t()),
        (numbers(64, 576), nn.Parameter(numbers(192, 576))),
        (numbers(64, 576)[None], numbers(192, 576)),
    ],
    ids=str,
)
def test_other_forms_are_left_to_torch(x: torch.Tensor, weight: torch.Tensor) -> None:
    assert WideProducts().multiply(x, weight) is None


@pytest.mark.parametrize("shape", [(80, 4096), (128, 4096), (256, 8192)])
@torch.inference_mode()
def test_few_outputs_of_many_inputs_are_looked_at_in_several_products(
    shape: tuple[int, int], program: WideProgram
) -> None:
    wide, weight = WideProducts(), numbers(*shape)
    x = numbers(100, shape[1])
    assert same_bits(wide.multiply(x, weight), functional.linear(x, weight))


@torch.inference_mode()
def test_another_number_of_threads_is_tried_anew() -> None:
    if not can_be_wide() or "ONEDNN_MAX_CPU_ISA" in os.environ:
        pytest.skip("this processor has no tiles, or oneDNN is kept from them")
    wide = WideProducts()
    values, weights = cancelling(numbers(64, 2048), numbers(256, 2048))
    try:
        for threads in (1, 2, 1, 3):
            torch.set_num_threads(threads)
            product = wide.multiply(values, weights)
            assert product is None or same_bits(product, functional.linear(values, weights))
    finally:
        torch.set_num_threads(1)
    assert {shape.threads for shape in wide._pieces} == {1, 2, 3}


@pytest.mark.parametrize("error", [OSError, RuntimeError, MemoryError])
def test_without_memory_for_a_trial_torch_does_it(
    error: type[Exception], program: WideProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise error("no memory")

    monkeypatch.setattr(wide_trial.mmap, "mmap", no_memory)
    assert WideProducts().multiply(numbers(64, 576), numbers(192, 576)) is None


@pytest.mark.parametrize("order", ["in order", "backwards", "by twos", "rounded before"])
def test_another_order_of_torchs_is_seen(
    order: str, program: WideProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of 4 tiles whose sums are added up otherwise, as several threads might do."""

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        a, b, c, d = pieces_of(x, weight, 128)
        found = {
            "in order": ((a + b) + c) + d,
            "backwards": ((d + c) + b) + a,
            "by twos": (a + b) + (c + d),
            "rounded before": ((a + b) + c).bfloat16() + d,
        }
        return found[order].bfloat16()

    monkeypatch.setattr(wide_trial.functional, "linear", linear)
    wanted = 128 if order == "in order" else None
    assert torchs_piece(program, 40, 128, 512) == wanted


def test_where_it_cannot_be_compiled_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_products, "wide_program", lambda _: None)
    assert WideProducts().multiply(numbers(64, 576), numbers(192, 576)) is None


@torch.inference_mode()
def test_threads_do_not_write_to_each_others_memory(threads: int, program: WideProgram) -> None:
    wide, weight = WideProducts(), numbers(576, 1536)
    given = [numbers(rows, 1536, seed) for seed in range(4) for rows in (40, 200)]
    wanted = [functional.linear(x, weight) for x in given]
    wrong: list[int] = []

    def multiply(place: int) -> None:
        for _ in range(20):
            if not same_bits(wide.multiply(given[place], weight), wanted[place]):
                wrong.append(place)

    workers = [threading.Thread(target=multiply, args=(place,)) for place in range(len(given))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_a_linear_gives_many_rows_what_torch_gives_in_every_layout(
    bias: bool, program: WideProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = nn.Linear(576, 192, bias=bias, dtype=torch.bfloat16)
    weight, plus = linear.weight.detach().clone(), linear.bias
    wide = WideProducts()
    turn_linears(linear, wide=wide)
    used: list[torch.Size] = []
    multiply = wide.multiply

    def counted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
        used.append(x.shape)
        return multiply(x, weight)

    monkeypatch.setattr(wide, "multiply", counted)
    x = numbers(100, 576)
    layouts = {
        "a matrix": x,
        "one batch": x[None],
        "two": x.view(2, 50, 576),
        "turned round": x.t().contiguous().t(),
        "a slice": numbers(200, 576)[::2],
        "the last of each": numbers(50, 1728).view(50, 3, 576)[:, 1:],
    }
    found = {
        name: same_bits(linear(given), functional.linear(given, weight, plus))
        for name, given in layouts.items()
    }
    assert (type(linear), all(found.values())) == (TurnedLinear, True), found
    assert used == ([] if bias else [(100, 576)] * 3)
