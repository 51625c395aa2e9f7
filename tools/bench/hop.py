"""What one hop costs the orchestrator: its own CPU time for each op of a stage.

    python -m tools.bench.hop [--rounds N] [--steps N] [--profile]

The stages answer at once with a hidden state of one token: 1,152 characters of base64 as of a small
model, 21,848 as of hidden size 8192. CPU time of this process, of all its threads, is divided by
the ops that the stages answered; a bundle is written as in a run. The ways are measured in turn, so
that a busy machine slows all alike. "a pipe alone" sends and reads the same lines with the same
transport and does nothing else: the floor. "and events in it": the stages write an event after
each reply, as workers do, which is one more line to read and to keep. Processors change their pace
while this runs, by half and more: so a fixed piece of work, the encoding of one request, is timed
among the ops of each way. It takes 5 us at the pace that the limit of 150 us was set for; "at the
pace of the limit" is a way's cost as many times 5 us as it is times its encoding.
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
from dataclasses import dataclass
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
BLOCK_STEPS, BLOCK_ENCODINGS = 50, 400
SIZES = {"1.2 KB": 1152, "16 KiB": 21848}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of one op, and of the fixed piece of work meanwhile, in microseconds."""

    op_us: float
    encoding_us: float

    @property
    def at_limit_us(self) -> float:
        """The cost of an op at the pace that the limit was set for."""
        return self.op_us / self.encoding_us * LIMIT_ENCODING_US


async def cost_of(
    hidden_chars: int, steps: int, recorder: Recorder | None = None, *, tells: bool = False
) -> Cost:
    """Return what each op of decode steps costs."""
    specs = quick_specs(NUM_STAGES, hidden_chars, tells=tells)
    async with await Stages.start(specs, recorder=recorder) as pipeline:

        async def step(position: int) -> None:
            await pipeline.forward("r", (7,), position, Sampling())

        return await _measured(step, steps, NUM_STAGES)


async def pipe_cost(hidden_chars: int, steps: int) -> Cost:
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

    cost = await _measured(step, steps * NUM_STAGES, 1)
    process.close_stdin()
    await process.wait()
    await reading
    process.close()
    return cost


async def _measured(step: Callable[[int], Awaitable[None]], steps: int, ops: int) -> Cost:
    """Return what an op costs where a step has so many, after a tenth of them as a warm-up."""
    for position in range(1, steps // 10):
        await step(position)
    used_s, encodings_us = 0.0, list[float]()
    for first in range(1, steps + 1, BLOCK_STEPS):
        encodings_us.append(encoding_us())
        begun_s = time.process_time()
        for position in range(first, min(first + BLOCK_STEPS, steps + 1)):
            await step(position)
        used_s += time.process_time() - begun_s
    return Cost(used_s * 1e6 / steps / ops, statistics.median(encodings_us))


def on_loop(measure: Callable[[int, int], Coroutine[Any, Any, Cost]], *how: int) -> Cost:
    """Measure on an event loop of its own."""
    return asyncio.run(measure(*how))


def with_bundle(hidden_chars: int, steps: int, *, tells: bool = False) -> Cost:
    """Measure with a bundle that is written."""
    with tempfile.TemporaryDirectory() as folder:
        writer = BundleWriter(Path(folder) / "bundle")
        try:
            return asyncio.run(cost_of(hidden_chars, steps, writer, tells=tells))
        finally:
            writer.close(0)


def encoding_us() -> float:
    """Return the microseconds of a fixed piece of work: how fast this machine is just now."""
    request = ForwardRange(request_id="r", position=5, seq_len=1, hidden_b64=b"A" * 1152)
    begun_s = time.process_time()
    for _ in range(BLOCK_ENCODINGS):
        encode_request(request)
    return (time.process_time() - begun_s) * 1e6 / BLOCK_ENCODINGS


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
    ways: dict[str, Callable[[], Cost]] = {}
    for name, chars in SIZES.items():
        ways[f"{name}, a pipe alone"] = partial(on_loop, pipe_cost, chars, given.steps)
        ways[f"{name}, no bundle"] = partial(on_loop, cost_of, chars, given.steps)
        ways[f"{name}, with a bundle"] = partial(with_bundle, chars, given.steps)
        ways[f"{name}, and events in it"] = partial(with_bundle, chars, given.steps, tells=True)
    found = in_turn(ways, given.rounds)
    costs = [cost for values in found.values() for cost in values]
    print(f"encoding one request took {spread([cost.encoding_us for cost in costs], 1)} us")
    slow = False
    for name, values in found.items():
        at_limit_us = [cost.at_limit_us for cost in values]
        print(
            f"{name:24} {spread([cost.op_us for cost in values], 1)} us of CPU time for each op; "
            f"{spread(at_limit_us, 1)} at the pace of the limit"
        )
        slow |= statistics.median(at_limit_us) > LIMIT_US
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
