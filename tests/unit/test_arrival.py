"""The rate at which a link delivers is that of long lines, from their first bytes on."""

from __future__ import annotations

import asyncio
import os
import time

from orchestrator.transport.arrival import LONG_LINE_BYTES
from orchestrator.transport.lines import READ_BYTES, LineReader


def test_only_long_lines_tell_a_rate_and_it_is_that_of_what_came_after_their_first_bytes() -> None:
    lines: list[int] = []

    async def run() -> tuple[float | None, float | None, float]:
        our_end, their_end = os.pipe()
        reader = LineReader(os.fdopen(our_end, "rb", 0), 2 * LONG_LINE_BYTES)
        reading = asyncio.create_task(reader.each(lambda line: lines.append(len(line))))

        async def send(data: bytes) -> None:
            """Write in pieces that the pipe has room for."""
            for i in range(0, len(data), READ_BYTES // 4):
                os.write(their_end, data[i : i + READ_BYTES // 4])
                await asyncio.sleep(0)

        begun_s = time.perf_counter()
        await send(b"x" * (LONG_LINE_BYTES // 2) + b"\n")
        short = reader.arrival.bytes_s
        await send(b"x" * LONG_LINE_BYTES + b"\n")
        os.close(their_end)
        await reading
        reader.close()
        least = (LONG_LINE_BYTES - READ_BYTES) / (time.perf_counter() - begun_s)
        return short, reader.arrival.bytes_s, least

    short, long, least = asyncio.run(run())
    assert lines == [LONG_LINE_BYTES // 2 + 1, LONG_LINE_BYTES + 1]
    assert short is None
    assert long is not None and long > least
