"""Lines out of a pipe: however the bytes are cut, the same lines come out."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.transport.base import LineTooLong, PipeClosed
from orchestrator.transport.line_writer import LineWriter
from orchestrator.transport.lines import LineCutter, LineReader

T = TypeVar("T")


def read_all(chunks: list[bytes], max_line_bytes: int = 1000) -> list[bytes]:
    """Feed the chunks, then the end; return the lines."""
    cutter = LineCutter(max_line_bytes)
    lines = [line for chunk in chunks for line in cutter.feed(chunk)]
    return [*lines, *filter(None, [cutter.rest()])]


@given(st.binary().map(lambda b: b.replace(b"x", b"\n")), st.lists(st.integers(0, 60)))
def test_the_cuts_do_not_matter(data: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(bounds)]
    assert read_all(chunks) == re.findall(rb"[^\n]*\n|[^\n]+", data)


def test_a_cut_last_line_is_delivered_as_it_is() -> None:
    assert read_all([b"one\ntw", b"o"]) == [b"one\n", b"two"]


def test_a_line_of_the_limit_passes_and_one_over_it_is_an_error_not_a_fragment() -> None:
    cutter = LineCutter(8)
    lines = [*cutter.feed(b"1234567\nab\n12345")]
    with pytest.raises(LineTooLong) as caught:
        lines.extend(cutter.feed(b"6789\nnever seen\n"))
    assert (lines, caught.value.limit_bytes) == ([b"1234567\n", b"ab\n"], 8)


def test_the_lines_before_one_over_the_limit_are_taken() -> None:
    lines = []
    with pytest.raises(LineTooLong):
        lines.extend(LineCutter(8).feed(b"1234567\nab\n123456789"))
    assert lines == [b"1234567\n", b"ab\n"]


def of_pipe(data: bytes, act: Callable[[LineReader], Awaitable[T]]) -> T:
    """Run `act` with the reader of a pipe that holds `data`, and then ends."""

    async def run() -> T:
        our_end, their_end = os.pipe()
        os.write(their_end, data)
        os.close(their_end)
        reader = LineReader(os.fdopen(our_end, "rb", 0), max_line_bytes=8)
        try:
            return await act(reader)
        finally:
            reader.close()

    return asyncio.run(run())


def test_lines_are_handed_on_or_asked_for_or_both() -> None:
    async def read(reader: LineReader) -> tuple[bytes, list[bytes], bytes]:
        handed: list[bytes] = []
        first = await reader.readline()
        await reader.each(handed.append)
        return first, handed, await reader.readline()

    assert of_pipe(b"one\ntwo\nthr", read) == (b"one\n", [b"two\n", b"thr"], b"")


def test_a_line_over_the_limit_is_an_error_each_time_it_is_asked_for() -> None:
    async def read(reader: LineReader) -> bytes:
        first = await reader.readline()
        for _ in range(2):
            with pytest.raises(LineTooLong):
                await reader.readline()
        return first

    assert of_pipe(b"one\n123456789\n", read) == b"one\n"


def test_what_the_taker_of_a_line_raises_ends_the_reading() -> None:
    lines: list[bytes] = []

    def take(line: bytes) -> None:
        lines.append(line)
        if line == b"two\n":
            raise ValueError("two")

    with pytest.raises(ValueError, match="two"):
        of_pipe(b"one\ntwo\nthree\n", lambda reader: reader.each(take))
    assert lines == [b"one\n", b"two\n"]


def test_a_writer_without_a_pipe_says_that_it_is_closed() -> None:
    async def write() -> None:
        LineWriter().write(b"x\n")

    with pytest.raises(PipeClosed):
        asyncio.run(write())
