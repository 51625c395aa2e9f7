"""Many requests against one: tokens a second, how busy the stages are, what a long prompt costs.

    python -m tools.bench.streams [--stages 4] [--seconds 3] [--json FILE]
    python -m tools.bench.streams --folder MODEL [--stages 2] [--layers 17 13] [--streams 1 4 16]

Without a model the stages sleep as long as they are told to (10 ms for an op of decode steps, 1 ms
for each token of a prompt), so that only the order of the work is measured. `busy` is the share
of the time that a stage's own op events tell of, of the least busy stage. `stall` is the longest
that any stream waited for a token while a prompt of 2,048 tokens was read. With a model, whole
answers are streamed, text included, and rates are taken while all streams decode.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from orchestrator.bundle.records import NoRecorder
from orchestrator.generate import generate
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from tools.bench.paced_stages import StagePace, paced_specs
from worker.protocol.codec import EventLine, decode_worker_line
from worker.protocol.events import Op
from worker.protocol.ops import Sampling

PROMPT_TOKENS = 2048
TEXT = "The stages of a pipeline are busy when each of them has something to do at any time. "


@dataclass
class Watch(NoRecorder):
    """Adds up what the stages' op events tell of."""

    worked_ms: dict[int, float] = field(default_factory=dict)

    def line(self, stage: int, host: str, line: bytes, wall_ms: float) -> None:
        """Take an event."""
        read = decode_worker_line(line)
        if isinstance(read, EventLine) and isinstance(read.event, Op):
            self.worked_ms[stage] = self.worked_ms.get(stage, 0.0) + read.event.duration_ms

    def busy(self, before: dict[int, float], took_s: float) -> list[float]:
        """Return each stage's share of the time since it had worked so much."""
        return [
            round((worked - before.get(stage, 0.0)) / took_s / 1e3, 3)
            for stage, worked in sorted(self.worked_ms.items())
        ]


@dataclass(frozen=True, slots=True)
class Streams:
    """What some streams got together.

    Attributes:
        busy: each stage's share of the time.
        step_ms: median of what a stream waited for a token.
        most_ms: the longest of these.
    """

    streams: int
    tokens_s: float
    busy: list[float]
    step_ms: float
    most_ms: float


async def decode(
    pipeline: Stages, rid: str, until: asyncio.Event, waits_s: list[float], position: int = 1
) -> None:
    """Decode one stream until it is enough."""
    while not until.is_set():
        began_s = time.perf_counter()
        await pipeline.forward(rid, (7,), position, Sampling())
        waits_s.append(time.perf_counter() - began_s)
        position += 1


async def paced_streams(
    specs: Sequence[StageSpec], streams: Sequence[int], seconds: float
) -> list[Streams]:
    """Measure some numbers of streams, one after the other."""
    watch, found = Watch(), []
    async with await Stages.start(specs, recorder=watch) as pipeline:
        for count in streams:
            waits_s: list[float] = []
            until = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for i in range(count):
                    group.create_task(decode(pipeline, f"{count}-{i}", until, waits_s))
                await asyncio.sleep(seconds / 4)
                before, began_s = dict(watch.worked_ms), time.perf_counter()
                waits_s.clear()
                await asyncio.sleep(seconds)
                took_s = time.perf_counter() - began_s
                busy, rate = watch.busy(before, took_s), len(waits_s) / took_s
                until.set()
            step_ms, most_ms = median(waits_s) * 1e3, max(waits_s) * 1e3
            found.append(Streams(count, round(rate, 1), busy, round(step_ms, 1), round(most_ms, 1)))
            await asyncio.gather(*(pipeline.release(f"{count}-{i}") for i in range(count)))
    return found


@dataclass(frozen=True, slots=True)
class Stall:
    """What a long prompt cost the streams beside it."""

    chunk: int
    prefill_s: float
    tokens_s: float
    step_ms: float
    most_ms: float


async def paced_stall(specs: Sequence[StageSpec], chunk: int, streams: int) -> Stall:
    """Read a long prompt beside some streams."""
    waits_s: list[float] = []
    until = asyncio.Event()
    async with await Stages.start(specs) as pipeline, asyncio.TaskGroup() as group:
        for i in range(streams):
            group.create_task(decode(pipeline, f"d{i}", until, waits_s))
        await pipeline.prefill("warm-up", (7,) * 2 * chunk, chunk, Sampling())
        await asyncio.sleep(0.5)
        waits_s.clear()
        began_s = time.perf_counter()
        await pipeline.prefill("long", (7,) * PROMPT_TOKENS, chunk, Sampling())
        prefill_s, steps = time.perf_counter() - began_s, len(waits_s)
        until.set()
    return Stall(
        chunk,
        round(prefill_s, 2),
        round(steps / prefill_s, 1),
        round(median(waits_s) * 1e3, 1),
        round(max(waits_s) * 1e3, 1),
    )


async def prefill_ratio(pipeline: Stages, tokens: Sequence[int], chunk: int, rounds: int) -> Any:
    """Return seconds of a prompt chunk after chunk, pipelined, and their ratio (medians)."""
    one_by_one_s, pipelined_s = [], []
    for i in range(rounds + 1):
        began_s = time.perf_counter()
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            is_last = start + chunk >= len(tokens)
            await pipeline.forward(f"a{i}", part, start, Sampling() if is_last else None)
        middle_s = time.perf_counter()
        await pipeline.prefill(f"b{i}", tokens, chunk, Sampling())
        if i:  # the first round is the warm-up
            one_by_one_s.append(middle_s - began_s)
            pipelined_s.append(time.perf_counter() - middle_s)
        await pipeline.release(f"a{i}")
        await pipeline.release(f"b{i}")
    alone, together = median(one_by_one_s), median(pipelined_s)
    return {
        "one_by_one_s": round(alone, 3),
        "pipelined_s": round(together, 3),
        "ratio": round(alone / together, 2),
    }


async def paced(stages: int, seconds: float) -> dict[str, Any]:
    """Play everything with stages that sleep."""
    plain, long_link = StagePace(), StagePace(link_ms=5.0)
    found: dict[str, Any] = {}
    counts = [1, stages, 2 * stages, 4 * stages]
    for name, pace, streams in (("local", plain, counts), ("5 ms links", long_link, counts[1:])):
        rows = await paced_streams(paced_specs(stages, pace), streams, seconds)
        found[name] = [asdict(row) for row in rows]
    alone = await paced_streams(paced_specs(stages, plain, capabilities=()), counts, seconds)
    found["local, never together"] = [asdict(row) for row in alone]
    found["long prompt"] = [
        asdict(await paced_stall(paced_specs(stages, plain), chunk, 4))
        for chunk in (PROMPT_TOKENS, 256, 128)
    ]
    async with await Stages.start(paced_specs(2, plain)) as pipeline:
        found["prefill on 2 stages"] = await prefill_ratio(pipeline, (7,) * PROMPT_TOKENS, 256, 1)
    return found


async def real_streams(
    pipeline: Stages, watch: Watch, count: int, new_tokens: int, prompt_words: int
) -> Streams:
    """Stream whole answers; rates are of the time when all have begun and none has ended."""
    begun, times_s = 0, list[tuple[float, int]]()
    window: list[tuple[float, dict[int, float]]] = []

    async def one(index: int) -> None:
        nonlocal begun
        request = GenerationRequest(
            request_id=f"{count}-{index}",
            prompt=f"{index}. " + TEXT * (prompt_words // 16 + index % 3),
            max_new_tokens=new_tokens,
            ignore_eos=True,
        )
        tokens = 0
        async with contextlib.aclosing(generate(pipeline, request, watch)) as outputs:
            async for _ in outputs:
                tokens += 1
                now_s = time.perf_counter()
                times_s.append((now_s, index))
                begun += tokens == 1
                if (begun == count and not window) or (tokens == new_tokens and len(window) == 1):
                    window.append((now_s, dict(watch.worked_ms)))

    await asyncio.gather(*(one(i) for i in range(count)))
    (from_s, before), (to_s, after) = window
    took_s = to_s - from_s
    inside = [(at_s, index) for at_s, index in times_s if from_s < at_s <= to_s]
    busy = [round((after[i] - before.get(i, 0.0)) / took_s / 1e3, 3) for i in sorted(after)]
    last_s: dict[int, float] = {}
    waits_s = []
    for at_s, index in inside:
        if index in last_s:
            waits_s.append(at_s - last_s[index])
        last_s[index] = at_s
    step_ms, most_ms = median(waits_s) * 1e3, max(waits_s) * 1e3
    return Streams(
        count, round(len(inside) / took_s, 1), busy, round(step_ms, 1), round(most_ms, 1)
    )


def real_specs(
    folder: Path, stages: int, threads: int, layers: Sequence[int] | None = None
) -> list[StageSpec]:
    """Return workers of a real model on this machine; `layers` says how many each has."""
    options = WorkerOptions(model_id=str(folder), threads=threads)
    environment = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    ends = list(accumulate(layers or ()))
    spans = list(pairwise([0, *ends])) if layers else [None] * stages
    return [
        StageSpec(
            stage=i, num_stages=len(spans), layers=span, options=options, environment=environment
        )
        for i, span in enumerate(spans)
    ]


async def real(given: argparse.Namespace) -> dict[str, Any]:
    """Play everything with a model."""
    watch, found = Watch(), dict[str, Any]()
    specs = real_specs(given.folder, given.stages, given.threads, given.layers)
    async with await Stages.start(specs, recorder=watch) as pipeline:
        await real_streams(pipeline, watch, 2, 8, 32)  # the kernels' first calls
        rounds: dict[int, list[Streams]] = {count: [] for count in given.streams}
        for _ in range(given.rounds):
            for count in given.streams:
                rounds[count].append(await real_streams(pipeline, watch, count, given.tokens, 64))
        middle = [
            sorted(rows, key=lambda row: row.tokens_s)[len(rows) // 2] for rows in rounds.values()
        ]
        found["streams"] = [
            {**asdict(row), "ratio": round(row.tokens_s / middle[0].tokens_s, 2)} for row in middle
        ]
        found["all rates"] = {
            count: [row.tokens_s for row in rows] for count, rows in rounds.items()
        }
        ids = await pipeline.tokenize("t", TEXT * 128)
        for tokens in (1024, PROMPT_TOKENS):
            ratio = await prefill_ratio(pipeline, ids[:tokens], 256, given.rounds)
            found[f"prefill of {tokens}"] = ratio
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the findings as JSON, a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="a model; without one the stages sleep")
    parser.add_argument("--stages", type=int, help="4 that sleep, or 2 of a model")
    parser.add_argument(
        "--layers", type=int, nargs="+", metavar="N", help="of each stage of a model; else even"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="for each number of streams")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16], metavar="N")
    parser.add_argument("--tokens", type=int, default=48, help="new tokens of each answer")
    parser.add_argument("--threads", type=int, default=1, help="of each stage")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings there")
    given = parser.parse_args(argv)
    if given.layers and (given.folder is None or given.stages not in (None, len(given.layers))):
        parser.error("--layers are those of a model (--folder), as many as there are --stages")
    given.stages = given.stages or (4 if given.folder is None else 2)
    playing = paced(given.stages, given.seconds) if given.folder is None else real(given)
    found = asyncio.run(playing)
    for name, rows in found.items():
        print(f"{name}:")
        for row in rows if isinstance(rows, list) else [rows]:
            print(f"  {json.dumps(row)}")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
