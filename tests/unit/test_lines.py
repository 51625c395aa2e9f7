"""Lines out of a pipe: however the bytes are cut, the same lines come out."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.transport.base import LineTooLong, PipeClosed
from orchestrator.transport.lines import ChunkLines, LineWriter


def read_all(chunks: list[bytes], max_line_bytes: int = 1000) -> list[bytes]:
    """Feed the chunks, then the end; return the lines."""

    async def read() -> list[bytes]:
        reader = ChunkLines(max_line_bytes)
        for chunk in chunks:
            reader.data_received(chunk)
        reader.connection_lost(None)
        lines = []
        while line := await reader.readline():
            lines.append(line)
        return lines

    return asyncio.run(read())


@given(st.binary().map(lambda b: b.replace(b"x", b"\n")), st.lists(st.integers(0, 60)))
def test_the_cuts_do_not_matter(data: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(bounds)]
    assert read_all(chunks) == re.findall(rb"[^\n]*\n|[^\n]+", data)


def test_a_cut_last_line_is_delivered_as_it_is() -> None:
    assert read_all([b"one\ntw", b"o"]) == [b"one\n", b"two"]


def test_a_line_of_the_limit_passes_and_one_over_it_is_an_error_not_a_fragment() -> None:
    async def read() -> tuple[bytes, bytes, int]:
        reader = ChunkLines(8)
        reader.data_received(b"1234567\nab\n12345")
        reader.data_received(b"6789\nnever seen\n")
        first, second = await reader.readline(), await reader.readline()
        with pytest.raises(LineTooLong) as caught:
            await reader.readline()
        with pytest.raises(LineTooLong):
            await reader.readline()
        return first, second, caught.value.limit_bytes

    assert asyncio.run(read()) == (b"1234567\n", b"ab\n", 8)


def test_a_writer_without_a_pipe_says_that_it_is_closed() -> None:
    async def write() -> None:
        LineWriter().write(b"x\n")

    with pytest.raises(PipeClosed):
        asyncio.run(write())
