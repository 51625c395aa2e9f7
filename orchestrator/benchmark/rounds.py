"""Every number of requests once a round, in turn, so that a busy machine slows all alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.benchmark.stream import StreamSample, run_streams
from orchestrator.benchmark.tap import Tap
from orchestrator.benchmark.token_time import AloneSample, alone_sample, busy_shares
from orchestrator.benchmark.workload import Workload
from orchestrator.stages import Stages
from orchestrator.stderr import say


@dataclass(frozen=True, slots=True)
class LevelSample:
    """Some requests at once; `busy` is by stage, the share of their time that it computed."""

    streams: tuple[StreamSample, ...]
    busy: tuple[float, ...]

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all, from the first request's begin to the last one's end."""
        begin_ms = min(stream.begun_ms for stream in self.streams)
        end_ms = max(stream.token_ms[-1] for stream in self.streams)
        new_tokens = sum(len(stream.token_ms) for stream in self.streams)
        return new_tokens * 1e3 / max(end_ms - begin_ms, 1e-6)


class Rounds:
    """Runs the requests and keeps the samples.

    Attributes:
        alone: one sample of each round, of the request that ran alone.
        levels: by the number of requests at once, one sample of each round.
    """

    def __init__(self, pipeline: Stages, tap: Tap, workload: Workload) -> None:
        self._pipeline = pipeline
        self._tap = tap
        self._workload = workload
        self._asked = 0
        self.alone: list[AloneSample] = []
        self.levels: dict[int, list[LevelSample]] = defaultdict(list)

    async def warm_up(self) -> StreamSample:
        """Run the request that pays for whatever is done once."""
        (sample,) = await self._run(1)
        return sample

    async def run(self, counts: Sequence[int], number: int, rounds: int) -> None:
        """Run a round; odd ones go backwards, so that nothing always follows the same."""
        for count in counts if number % 2 == 0 else reversed(counts):
            at_once = "1 request" if count == 1 else f"{count} requests at once"
            say(f"round {number + 1} of {rounds}: {at_once}")
            samples = await self._run(count)
            begin_ms = min(sample.begun_ms for sample in samples)
            end_ms = max(sample.token_ms[-1] for sample in samples)
            ops = self._tap.between(begin_ms, end_ms)
            num_stages = len(self._pipeline.ready)
            busy = busy_shares(ops, begin_ms, end_ms, num_stages)
            self.levels[count].append(LevelSample(tuple(samples), busy))
            if count == 1:
                chunk = self._workload.prefill_chunk
                sample = alone_sample(samples[0], ops, num_stages=num_stages, prefill_chunk=chunk)
                self.alone.append(sample)

    async def _run(self, count: int) -> list[StreamSample]:
        first, self._asked = self._asked, self._asked + count
        requests = [self._workload.request(first + number) for number in range(count)]
        return await run_streams(self._pipeline, requests, self._tap)
