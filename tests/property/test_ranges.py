"""Requests: every missing byte once, next to nothing else, few of them, enough to share out."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

from hypothesis import given
from hypothesis import strategies as st

from worker.weights.header import TensorEntry
from worker.weights.hub_file import HubFile
from worker.weights.layout import Origin, PartLayout, part_key
from worker.weights.ranges import (
    GAP_SHARE,
    MIB,
    MOST_GAP_BYTES,
    MOST_JOB_BYTES,
    PIECE_BYTES,
    Piece,
    cut,
    plan_jobs,
)

SIZES = st.one_of(
    st.integers(0, 3),
    st.integers(1, 100_000),
    st.sampled_from([PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1]),
    st.integers(1, 40 * PIECE_BYTES),
)
GAPS = st.one_of(st.just(0), st.integers(1, 5000), st.integers(1, 3 * MOST_GAP_BYTES))
FILE = st.lists(st.tuples(SIZES, GAPS), max_size=12)


def pieces_of(files: list[list[tuple[int, int]]]) -> list[Piece]:
    """Cut tensors that lie in files with gaps between them into pieces."""
    pieces: list[Piece] = []
    for number, tensors in enumerate(files):
        at = 100
        for size_bytes, gap_bytes in tensors:
            for start, end in cut(size_bytes):
                pieces.append(Piece(f"f{number}", at + start, at + end, 0, len(pieces), 0))
            at += size_bytes + gap_bytes
    return pieces


def own_bytes(pieces: list[Piece]) -> int:
    return sum(piece.end - piece.start for piece in pieces)


@given(st.integers(0, 5 * PIECE_BYTES))
def test_pieces_cover_a_tensor_without_overlap_and_none_is_too_large(size_bytes: int) -> None:
    spans = list(cut(size_bytes))
    assert [start for start, _ in spans] == [0, *(end for _, end in spans)][: len(spans)]
    assert sum(end - start for start, end in spans) == size_bytes
    assert all(0 < end - start <= PIECE_BYTES for start, end in spans)


@given(st.lists(FILE, max_size=4), st.integers(1, 16), st.randoms())
def test_jobs_hold_every_piece_once_and_ask_for_half_a_percent_more_at_most(
    files: list[list[tuple[int, int]]], connections: int, draw: object
) -> None:
    pieces = pieces_of(files)
    shuffled = list(pieces)
    draw.shuffle(shuffled)  # type: ignore[attr-defined]
    jobs = plan_jobs(shuffled, connections)
    assert [piece for job in jobs for piece in job.pieces] == pieces
    for job in jobs:
        assert (job.start, job.end) == (job.pieces[0].start, job.pieces[-1].end)
        assert {piece.file for piece in job.pieces} == {job.file}
    asked_bytes = sum(job.end - job.start for job in jobs)
    assert asked_bytes <= own_bytes(pieces) * (1 + GAP_SHARE)


@given(st.lists(FILE, max_size=4), st.integers(1, 16))
def test_jobs_are_neither_too_large_nor_too_many(
    files: list[list[tuple[int, int]]], connections: int
) -> None:
    pieces = pieces_of(files)
    jobs = plan_jobs(pieces, connections)
    assert all(job.end - job.start <= MOST_JOB_BYTES + PIECE_BYTES + MOST_GAP_BYTES for job in jobs)
    gaps = sum(
        (left.file, left.end) != (right.file, right.start) for left, right in pairwise(pieces)
    )
    smallest = max(own_bytes(pieces) // (connections * 4), PIECE_BYTES)
    assert len(jobs) <= gaps + 1 + 2 * own_bytes(pieces) / min(smallest, MOST_JOB_BYTES)


@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=50), st.integers(1, 16))
def test_neighbours_are_asked_for_together(sizes: list[int], connections: int) -> None:
    jobs = plan_jobs(pieces_of([[(size, 0) for size in sizes]]), connections)
    assert [(job.start, job.end) for job in jobs] == [(100, 100 + sum(sizes))]


@given(st.integers(8, 200), st.integers(2, 8))
def test_one_large_tensor_keeps_every_connection_busy(size_mib: int, connections: int) -> None:
    pieces = pieces_of([[(size_mib * MIB, 0)]])
    jobs = plan_jobs(pieces, connections)
    assert len(jobs) >= min(connections, len(pieces) // 2)
    sizes = [job.end - job.start for job in jobs]
    assert max(sizes) - min(sizes) <= 2 * PIECE_BYTES


def test_a_stage_of_a_671b_model_is_planned_in_far_less_than_a_second_per_thousand_tensors() -> (
    None
):
    entries, at = [], 1000
    for layer in range(8):
        for expert in range(256):
            for name, dtype, shape in (
                ("gate_proj.weight", "F8_E4M3", (2048, 7168)),
                ("gate_proj.weight_scale_inv", "F32", (16, 56)),
                ("up_proj.weight", "F8_E4M3", (2048, 7168)),
                ("up_proj.weight_scale_inv", "F32", (16, 56)),
                ("down_proj.weight", "F8_E4M3", (7168, 2048)),
                ("down_proj.weight_scale_inv", "F32", (56, 16)),
            ):
                size_bytes = shape[0] * shape[1] * (4 if dtype == "F32" else 1)
                full = f"model.layers.{layer}.mlp.experts.{expert}.{name}"
                entries.append(TensorEntry(full, "f", dtype, shape, at, size_bytes))
                at += size_bytes
    began_s = perf_counter()
    origin, files = Origin("e", "r", "c"), {"f": HubFile("f", at, "etag")}
    pieces: list[Piece] = []
    for layer in range(8):
        of_layer = [e for e in entries if part_key(e.name) == f"model.layers.{layer}"]
        pieces += PartLayout.of(origin, f"model.layers.{layer}", of_layer, files).pieces(layer)
    jobs = plan_jobs(pieces, 4)
    took_s = perf_counter() - began_s
    assert sum(job.end - job.start for job in jobs) == at - 1000
    assert took_s < len(entries) / 1000
