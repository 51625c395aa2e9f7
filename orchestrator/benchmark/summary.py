"""The samples of all rounds -> the figures that are shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import median

from orchestrator import __version__
from orchestrator.benchmark.figure import Figure
from orchestrator.benchmark.guess_result import GuessResult
from orchestrator.benchmark.options import BenchOptions
from orchestrator.benchmark.result import (
    BenchResult,
    FirstRequest,
    LevelResult,
    StageResult,
)
from orchestrator.benchmark.rounds import LevelSample, Rounds
from orchestrator.benchmark.stream import StreamSample
from orchestrator.benchmark.surveyed import Planned
from orchestrator.benchmark.token_time import AloneSample
from orchestrator.stages import Stages


class Summary:
    """Makes the result of a bench."""

    def __init__(
        self, options: BenchOptions, found: Planned, pipeline: Stages, ready_ms: float
    ) -> None:
        self._options = options
        self._found = found
        self._pipeline = pipeline
        self._ready_ms = ready_ms

    def result(
        self,
        first: StreamSample,
        rounds: Rounds,
        guesses: GuessResult | None,
        notes: tuple[str, ...],
    ) -> BenchResult:
        """Return it; `notes` come after those of the plan."""
        options, ready, alone = self._options, self._pipeline.ready, rounds.alone
        numerics = ready[0].numerics or {}
        return BenchResult(
            model=options.model_id or "stub",
            model_type=ready[0].model_type,
            quantization=ready[0].quantization,
            versions={"stageline": __version__, **numerics},
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            prompt_tokens=first.prompt_tokens,
            new_tokens=options.new_tokens,
            rounds=options.rounds,
            ready_ms=self._ready_ms,
            first=FirstRequest(ttft_ms=first.ttft_ms, tokens_per_s=first.decode_tokens_per_s),
            ttft_ms=Figure.of(sample.stream.ttft_ms for sample in alone),
            prefill_tokens_per_s=Figure.of(sample.prefill_tokens_per_s for sample in alone),
            decode_tokens_per_s=Figure.of(sample.stream.decode_tokens_per_s for sample in alone),
            token_ms=Figure.of(1e3 / sample.stream.decode_tokens_per_s for sample in alone),
            stages=self._stages(alone),
            levels=tuple(
                level_result(count, samples) for count, samples in sorted(rounds.levels.items())
            ),
            guesses=guesses,
            notes=(*self._found.plan.notes, *notes),
        )

    def _stages(self, alone: Sequence[AloneSample]) -> tuple[StageResult, ...]:
        results = []
        for stage, (host, ready) in enumerate(
            zip(self._pipeline.hosts, self._pipeline.ready, strict=True)
        ):
            reading = self._found.readings[stage]
            start, end = ready.layer_range
            results.append(
                StageResult(
                    stage=stage,
                    host=host,
                    layers=(start, end),
                    device=ready.device,
                    threads=(ready.numerics or {}).get("threads"),
                    compute_ms=Figure.of(sample.stages[stage].compute_ms for sample in alone),
                    wire_ms=Figure.of(sample.stages[stage].wire_ms for sample in alone),
                    idle_ms=Figure.of(sample.stages[stage].idle_ms for sample in alone),
                    read_bytes=None if reading is None else reading.read_bytes,
                    memory_gbps=None if reading is None else reading.memory_gbps,
                )
            )
        return tuple(results)


def level_result(streams: int, samples: Sequence[LevelSample]) -> LevelResult:
    """Return the figures of so many requests at once, from one sample of each round."""
    num_stages = len(samples[0].busy)
    return LevelResult(
        streams=streams,
        tokens_per_s=Figure.of(sample.tokens_per_s for sample in samples),
        each_tokens_per_s=Figure.of(
            median(stream.decode_tokens_per_s for stream in sample.streams) for sample in samples
        ),
        ttft_ms=Figure.of(
            median(stream.ttft_ms for stream in sample.streams) for sample in samples
        ),
        longest_gap_ms=Figure.of(
            max(stream.longest_gap_ms for stream in sample.streams) for sample in samples
        ),
        busy=tuple(
            Figure.of(sample.busy[stage] for sample in samples) for stage in range(num_stages)
        ),
    )
