"""Attention by code of our own gives the bits of torch's, or is not used."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.model import attention
from worker.model.attend_floats import float_text
from worker.model.attend_text import FEATURES, AttendShape
from worker.model.attention import (
    UNUSED_ROW,
    Attention,
    op_of_rows,
    plan_row,
    shape_of,
)
from worker.model.native_ops import NoNativeOps

# Heads, heads of keys, numbers of a head.
SHAPES = ((9, 3, 64), (32, 8, 128), (31, 1, 64), (16, 2, 32), (3, 3, 96), (8, 4, 256))
MOST = 1100


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def drawn(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


def attention_for(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None
) -> Attention | None:
    shape = shape_of(query, keys, values, scale)
    return None if shape is None else attention.attention(shape)


def states(shape: tuple[int, int, int], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """A query, keys and values of as many positions as there may be."""
    heads, kv_heads, dim = shape
    query = drawn(1, 1, heads, dim, seed=seed).transpose(1, 2)
    return query, *(drawn(1, kv_heads, MOST, dim, seed=seed + i) for i in (1, 2))


def torchs(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, scale=scale, enable_gqa=query.shape[1] != keys.shape[1]
    )


def is_used() -> bool:
    """Whether the processor has what it takes, and a shape that is known to fit is attended."""
    return attention_for(*states((9, 3, 64)), None) is not None


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.int16), other.contiguous().view(torch.int16))


def attended(found: Attention, *given: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(given[0], 7.0)
    found.attend(*given, out)
    return out


def test_where_torch_has_its_kernels_so_have_we() -> None:
    features = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    is_known = torch.__version__.split("+")[0] == "2.13.0" and "GCC 13." in torch.__config__.show()
    uses = (
        is_known
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
    )
    may = uses and features.issuperset(FEATURES)
    # elsewhere MKL may have other kernels, which the trial finds out
    assert is_used() is may or (may and "GenuineIntel" not in features)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.inference_mode()
def test_each_position_has_the_bits_of_torch(shape: tuple[int, int, int], threads: int) -> None:
    query, keys, values = states(shape)
    found = attention_for(query, keys, values, None)
    assert (found is not None) is is_used()
    ends = (*range(1, 70), 255, 500, 511, 512, 513, 529, 777, 1024, MOST)
    for end in ends if found else ():
        seen = keys[:, :, :end], values[:, :, :end]
        # the largest weight by far, and all about alike
        for factor in (1, 20, 2**-9):
            asked = query * factor
            assert same_bits(attended(found, asked, *seen), torchs(asked, *seen)), (end, factor)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.integers(1, MOST),
    st.integers(0, 2**20),
    st.sampled_from([None, 1.0, 0.0, 0.3, 17.5]),
)
@torch.inference_mode()
def test_any_numbers_have_the_bits_of_torch(
    shape: tuple[int, int, int], end: int, seed: int, scale: float | None
) -> None:
    query, keys, values = states(shape, seed)
    found = attention_for(query, keys, values, scale)
    assert (found is not None) is is_used()
    if found is not None:
        seen = keys[:, :, :end] * (1 + seed % 7), values[:, :, :end]
        assert same_bits(attended(found, query, *seen), torchs(query, *seen, scale))


@pytest.mark.parametrize("end", [1, 5, 16, 37, 600])
@pytest.mark.parametrize("what", ["query", "keys", "values"])
@torch.inference_mode()
def test_what_is_no_number_or_too_large_stays_so(what: str, end: int) -> None:
    for value in (float("nan"), float("inf"), -float("inf"), 3.3e38, -3.3e38, 1e-40, -0.0):
        query, keys, values = (given.clone() for given in states((4, 2, 64)))
        found = attention_for(query, keys, values, None)
        if found is None:
            continue
        {"query": query, "keys": keys, "values": values}[what][:, 0, end // 2 : end] = value
        if what == "query":
            query[:, 0, 0, 5] = value
        seen = keys[:, :, :end], values[:, :, :end]
        assert same_bits(attended(found, query, *seen), torchs(query, *seen)), value


@torch.inference_mode()
def test_scores_of_minus_infinity_weigh_nothing() -> None:
    query, keys, values = (given.clone() for given in states((4, 2, 64)))
    found = attention_for(query, keys, values, None)
    query[:], keys[:, :, 3:] = 1, 3.3e38
    for sign in (-1, 1):
        for end in (3, 4, 40, 700):
            if found is not None:
                seen = sign * keys[:, :, :end], values[:, :, :end]
                assert same_bits(attended(found, query, *seen), torchs(query, *seen))


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@torch.inference_mode()
def test_rows_of_a_pack_are_attended_each_with_its_own_request(
    shape: tuple[int, int, int], threads: int
) -> None:
    heads, kv_heads, dim = shape
    rows, layers = 6, 2
    new = [drawn(1, rows, n, dim, seed=n).transpose(1, 2) for n in (heads, kv_heads, kv_heads)]
    found = attention_for(*new, None)
    if found is None:
        assert not is_used()
        return
    # three rows of one request, two of others, one that nobody uses
    owners, ends = (0, 0, 0, 1, 2), (40, 41, 42, 1, 600)
    stores = [[drawn(1, kv_heads, MOST + i, dim, seed=7 * i + k) for k in (0, 1)] for i in range(3)]
    wanted_stores = [[store.clone() for store in pair] for pair in stores]
    used = [[*plan_row(*stores[i]), end] for i, end in zip(owners, ends, strict=True)]
    plan = torch.tensor([[UNUSED_ROW] * rows, [*used, UNUSED_ROW]])
    assert plan.shape == (layers, rows, len(UNUSED_ROW))
    out = torch.full((1, rows, heads, dim), 7.0, dtype=torch.bfloat16)
    scratch = torch.empty(found.scratch_bytes, dtype=torch.uint8)
    op_of_rows()(found.rows, *new, plan, scratch, out, 1)
    for row, (i, end) in enumerate(zip(owners, ends, strict=True)):
        query, *pair = (given[:, :, row : row + 1] for given in new)
        for store, states_of_row in zip(wanted_stores[i], pair, strict=True):
            store[:, :, end - 1 : end] = states_of_row
        seen = (store[:, :, :end] for store in wanted_stores[i])
        assert same_bits(out[:, row], torchs(query, *seen)[:, :, 0])
    assert not out[:, len(owners) :].any()
    pairs = zip(stores, wanted_stores, strict=True)
    assert all(same_bits(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


def test_threads_with_little_stack_attend() -> None:
    """32 heads of a query for one of the keys, on OpenMP threads of 64 KB."""
    script = """
import torch
torch.set_num_threads(2)
from worker.model.attention import attention, shape_of
query, keys = torch.randn(1, 64, 1, 256).bfloat16(), torch.randn(1, 2, 600, 256).bfloat16()
shape = shape_of(query, keys, keys, None)
print(shape is None or attention(shape) is not None)
"""
    environment = {**os.environ, "OMP_STACKSIZE": "64K", "OMP_NUM_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr[-500:]


@pytest.mark.parametrize(
    "given",
    [
        states((9, 3, 80)),
        states((9, 2, 64)),
        states((71, 1, 64)),
        [tensor.float() for tensor in states((9, 3, 64))],
        [tensor[..., ::2] for tensor in states((9, 3, 64))],
        [states((9, 3, 64))[0], states((9, 3, 64))[1], states((9, 3, 96))[2]],
    ],
    ids=["dim", "heads", "many heads", "float32", "apart", "other values"],
)
def test_other_forms_are_left_to_torch(given: list[torch.Tensor]) -> None:
    assert attention_for(*given, None) is None


def clear() -> None:
    """Forget what was found out."""
    for found in (attention._attention, attention._code, attention.is_known):
        found.cache_clear()


@pytest.mark.parametrize("lacks", ["AVX512", "this torch", "this commit", "compiler"])
def test_where_something_lacks_torch_does_it(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NoNativeOps("no compiler")

    clear()
    if lacks == "AVX512":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    elif lacks == "this torch":
        monkeypatch.setattr(torch, "__version__", "2.13.1+cpu")
    elif lacks == "this commit":
        monkeypatch.setattr(torch.version, "git_version", "0" * 40)
    else:
        monkeypatch.setattr(attention, "_code", fail)
    assert attention_for(*states((9, 3, 64)), None) is None
    monkeypatch.undo()
    clear()


@pytest.mark.parametrize("part", ["scores", "exponential", "sums", "values"])
def test_an_attention_with_other_bits_is_not_used(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_used = is_used()
    clear()
    code = attention._code
    text = attention.module_text

    def scaled(shape: AttendShape, threads: int) -> Any:
        return code(replace(shape, scale=math.nextafter(shape.scale * 1.0001, 1)), threads)

    def changed(shape: AttendShape, threads: int) -> str:
        if part == "exponential":
            was = float_text(0.30354260500649682)
            assert was in text(shape, threads)
            return text(shape, threads).replace(was, float_text(0.3036))
        lines = text(shape, threads).split("\n")
        first_of = "%new" if part == "values" else "%"
        places = [
            i
            for i, line in enumerate(lines)
            if "fadd <16 x float>" in line and line.startswith(first_of)
        ]
        head, first = lines[places[0]].split(", ")[0].rsplit(" ", 1)
        lines[places[0]] = f"{head} {first}, {first}"
        return "\n".join(lines)

    if part == "scores":
        monkeypatch.setattr(attention, "_code", scaled)
    else:
        monkeypatch.setattr(attention, "module_text", changed)
    judged: list[bool] = []
    is_exact = attention._is_exact
    monkeypatch.setattr(
        attention, "_is_exact", lambda found: [judged.append(is_exact(found)), judged[-1]][1]
    )
    assert attention_for(*states((9, 3, 64)), None) is None
    # it was compiled and found out, where there is such code at all
    assert judged == ([False] if was_used else [])
    monkeypatch.undo()
    clear()
