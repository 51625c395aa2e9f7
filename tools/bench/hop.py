"""What one hop costs the orchestrator: its own CPU time for each op of a stage.

    python -m tools.bench.hop [--rounds N] [--steps N] [--profile]

The stages answer at once with a hidden state of one token: 1,152 characters of base64 as of a small
model, 21,848 as of hidden size 8192. CPU time of this process, of all its threads, is divided by
the ops that the stages answered; a bundle is written as in a run. The ways are measured in turn, so
that a busy machine slows all alike. "a pipe alone" sends and reads the same lines with the same
transport and does nothing else: the floor. "and events in it": the stages write an event after
each reply, as workers do, which is one more line to read and to keep. "encoding one request" is a
fixed piece of work, 4 to 6 us on the machine that the limit was set for; where it takes longer, so
does all the rest. So the limit is 150 us where it takes 5, and as many more as it takes longer:
30 times the encoding, by the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.bundle.records import Recorder
from orchestrator.bundle.writer import BundleWriter
from orchestrator.stages import Stages
from orchestrator.transport.base import Launch
from orchestrator.transport.pipes import PipedProcess
from tools.bench.quick_stages import quick_specs
from tools.bench.rounds import in_turn, spread
from worker.protocol.codec import MAX_LINE_BYTES, encode_request
from worker.protocol.ops import ForwardRange, Sampling

NUM_STAGES = 4
LIMIT_US, LIMIT_ENCODING_US = 150, 5
SIZES = {"1.2 KB": 1152, "16 KiB": 21848}


async def cost_us(
    hidden_chars: int, steps: int, recorder: Recorder | None = None, *, tells: bool = False
) -> float:
    """Return the microseconds of CPU time for each op of decode steps."""
    specs = quick_specs(NUM_STAGES, hidden_chars, tells=tells)
    async with await Stages.start(specs, recorder=recorder) as pipeline:

        async def step(position: int) -> None:
            await pipeline.forward("r", (7,), position, Sampling())

        return await _measured(step, steps) / NUM_STAGES


async def pipe_us(hidden_chars: int, steps: int) -> float:
    """Return the same for lines that are only written and read."""
    spec = quick_specs(NUM_STAGES, hidden_chars)[1]
    launch = Launch("quick", (*spec.command, "--nonce=n"), "command")
    process = await PipedProcess.start(
        launch, max_line_bytes=MAX_LINE_BYTES, on_stderr=lambda data: None
    )
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    reading = asyncio.create_task(process.each_line(lines.put_nowait))
    for _ in range(2):
        await lines.get()
    text = b"A" * hidden_chars
    line = b'{"op":"forward_range","request_id":"r","hidden_b64":"' + text + b'"}\n'

    async def step(position: int) -> None:
        process.write(line)
        await lines.get()

    used_us = await _measured(step, steps * NUM_STAGES)
    process.close_stdin()
    await process.wait()
    await reading
    process.close()
    return used_us


async def _measured(step: Callable[[int], Awaitable[None]], steps: int) -> float:
    """Return the microseconds of CPU time of one step, after a tenth of them as a warm-up."""
    for position in range(1, steps // 10):
        await step(position)
    begun_s = time.process_time()
    for position in range(1, steps + 1):
        await step(position)
    return (time.process_time() - begun_s) * 1e6 / steps


def on_loop(measure: Callable[[int, int], Coroutine[Any, Any, float]], *how: int) -> float:
    """Measure on an event loop of its own."""
    return asyncio.run(measure(*how))


def with_bundle(hidden_chars: int, steps: int, *, tells: bool = False) -> float:
    """Measure with a bundle that is written."""
    with tempfile.TemporaryDirectory() as folder:
        writer = BundleWriter(Path(folder) / "bundle")
        try:
            return asyncio.run(cost_us(hidden_chars, steps, writer, tells=tells))
        finally:
            writer.close(0)


def fixed_work_us() -> float:
    """Return the microseconds of a fixed piece of work: how fast this machine is just now."""
    request = ForwardRange(request_id="r", position=5, seq_len=1, hidden_b64=b"A" * 1152)
    begun_s = time.process_time()
    for _ in range(10_000):
        encode_request(request)
    return (time.process_time() - begun_s) * 1e2


def main() -> int:
    """Print the table; the exit code is 1 where a hop costs more than it may."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--steps", type=int, default=500, metavar="N")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    given = parser.parse_args()
    if given.profile:
        profile = cProfile.Profile()
        profile.runcall(with_bundle, SIZES["1.2 KB"], given.steps)
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return 0
    ways: dict[str, Callable[[], float]] = {"encoding one request": fixed_work_us}
    for name, chars in SIZES.items():
        ways[f"{name}, a pipe alone"] = partial(on_loop, pipe_us, chars, given.steps)
        ways[f"{name}, no bundle"] = partial(on_loop, cost_us, chars, given.steps)
        ways[f"{name}, with a bundle"] = partial(with_bundle, chars, given.steps)
        ways[f"{name}, and events in it"] = partial(with_bundle, chars, given.steps, tells=True)
    found = in_turn(ways, given.rounds)
    encoding_us = statistics.median(found["encoding one request"])
    slow = False
    for name, values in found.items():
        times = statistics.median(values) / encoding_us
        print(f"{name:24} {spread(values, 1)} us of CPU time for each op, {times:.1f} times")
        slow |= times > LIMIT_US / LIMIT_ENCODING_US
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
