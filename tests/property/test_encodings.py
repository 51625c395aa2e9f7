"""Encodings of hidden states: what goes in comes out, and damaged bytes are told, never used."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.backends.transformers.row_int8 import RowInt8
from worker.byte_planes import BytePlanes

pytest.importorskip("zstandard")

planes, int8 = BytePlanes(), RowInt8()
_WIDTH = 12
_numbers = st.floats(-(2.0**100), 2.0**100, width=32)
_rows = st.lists(st.lists(_numbers, min_size=_WIDTH, max_size=_WIDTH), min_size=1, max_size=4)


def _bytes(rows: list[list[float]]) -> bytes:
    return torch.tensor(rows).bfloat16().view(torch.uint8).numpy().tobytes()


def _floats(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.bfloat16).double().reshape(-1, _WIDTH)


@given(st.binary(min_size=2, max_size=600).filter(lambda data: len(data) % 2 == 0))
def test_byte_planes_give_back_any_bytes(data: bytes) -> None:
    assert planes.decode(planes.encode(data, 1), len(data), 1) == data


@given(data=st.binary(max_size=200), count=st.integers(1, 100))
def test_foreign_bytes_are_refused_or_have_the_size_asked_for(data: bytes, count: int) -> None:
    try:
        decoded = planes.decode(data, count * 2, 1)
    except ValueError:
        return
    assert len(decoded) == count * 2


@given(data=st.binary(min_size=64, max_size=64), cut=st.integers(1, 80), more=st.binary(min_size=1))
def test_a_cut_or_longer_frame_is_refused(data: bytes, cut: int, more: bytes) -> None:
    encoded = planes.encode(data, 1)
    for damaged in (encoded[:-cut], encoded + more):
        with pytest.raises(ValueError, match="zstd frame"):
            planes.decode(damaged, len(data), 1)


def test_a_frame_that_announces_a_huge_size_is_refused_before_anything_is_allocated() -> None:
    # magic, descriptor: an 8-byte content size, single segment; then that size.
    frame = struct.pack("<IBQ", 0xFD2FB528, 0b1110_0000, 1 << 60)
    with pytest.raises(ValueError, match=f"announces {1 << 60} bytes, needs 4 high bytes"):
        planes.decode(b"\0" * 4 + frame, 8, 1)


@given(_rows)
def test_int8_keeps_the_eight_largest_and_the_rest_within_half_a_step(
    rows: list[list[float]],
) -> None:
    data = _bytes(rows)
    exact, nearly = (
        _floats(data),
        _floats(int8.decode(int8.encode(data, _WIDTH), len(data), _WIDTH)),
    )
    order = exact.abs().argsort(1)
    largest, rest = order[:, -8:], order[:, :-8]
    assert torch.equal(exact.gather(1, largest).abs(), nearly.gather(1, largest).abs())
    # Half a step of the scale, and bfloat16's own rounding of what comes out.
    small = exact.gather(1, rest)
    step = small.abs().amax(1, keepdim=True) / 127
    allowed = step / 2 * 1.001 + small.abs() / 128 + 2.0**-130
    assert bool(((nearly.gather(1, rest) - small).abs() <= allowed).all())


@given(_rows)
def test_a_row_is_encoded_alike_alone_and_among_others(rows: list[list[float]]) -> None:
    alone = b"".join(int8.encode(_bytes([row]), _WIDTH) for row in rows)
    assert int8.encode(_bytes(rows), _WIDTH) == alone


@settings(max_examples=50)
@given(data=st.binary(min_size=48, max_size=48), rows=st.integers(1, 2))
def test_foreign_int8_rows_are_refused_or_have_the_size_asked_for(data: bytes, rows: int) -> None:
    try:
        decoded = int8.decode(data, rows * _WIDTH * 2, _WIDTH)
    except ValueError:
        return
    assert len(decoded) == rows * _WIDTH * 2


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (b"", "0 bytes, needs 1*48"),
        (struct.pack("<f", float("nan")) + bytes(44), "a scale is no finite number"),
        (bytes(4) + struct.pack("<8H", *[12] * 8) + bytes(28), "names element 12 of rows of 12"),
    ],
)
def test_damaged_int8_rows_are_told(damaged: bytes, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        int8.decode(damaged, 24, _WIDTH)
    assert str(caught.value) == why
