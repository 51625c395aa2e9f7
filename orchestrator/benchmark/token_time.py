"""Where the time between two tokens of one request goes, stage by stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.benchmark.stream import StreamSample
from orchestrator.benchmark.tap import TimedOp


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage's part of the mean time between two tokens of a request that runs alone, in ms.

    Attributes:
        compute_ms: in the worker, from taking a line up to handing the reply on.
        wire_ms: what the orchestrator waited for the stage beyond that: pipes, network, encoding.
        idle_ms: the rest, in which the others had their turn.
    """

    compute_ms: float
    wire_ms: float
    idle_ms: float


@dataclass(frozen=True, slots=True)
class AloneSample:
    """One request that ran alone.

    Attributes:
        prefill_ms: from the first op of the prompt up to the reply with the first token.
        stages: by stage, the decode steps.
    """

    stream: StreamSample
    prefill_ms: float
    stages: tuple[StageTime, ...]

    @property
    def prefill_tokens_per_s(self) -> float:
        """Tokens of the prompt by the time of its ops."""
        return self.stream.prompt_tokens * 1e3 / max(self.prefill_ms, 1e-6)


def alone_sample(
    stream: StreamSample, ops: Sequence[TimedOp], *, num_stages: int, prefill_chunk: int
) -> AloneSample:
    """Tell prefill and decode of a request apart; `ops` are all of its time, in order."""
    by_stage: dict[int, list[TimedOp]] = defaultdict(list)
    for op in ops:
        by_stage[op.stage].append(op)
    # A stage that is the whole model has two ops for each: the layers, then the choice.
    per_chunk = 2 if num_stages == 1 else 1
    num_ops = per_chunk * -(-stream.prompt_tokens // prefill_chunk)
    first, last = by_stage[0], by_stage[num_stages - 1]
    prefill = last[:num_ops]
    prefill_ms = prefill[-1].end_ms - first[0].sent_ms if first and prefill else 0.0
    token_ms = stream.decode_ms / (len(stream.token_ms) - 1)
    stages = tuple(
        _stage_time(by_stage[stage][num_ops:], len(stream.token_ms) - 1, token_ms)
        for stage in range(num_stages)
    )
    return AloneSample(stream, prefill_ms, stages)


def _stage_time(ops: Sequence[TimedOp], tokens: int, token_ms: float) -> StageTime:
    told = [(op.waited_ms, op.compute_ms) for op in ops if op.compute_ms is not None]
    compute_ms = sum(compute for _, compute in told) / tokens
    wire_ms = sum(max(0.0, waited - compute) for waited, compute in told) / tokens
    return StageTime(compute_ms, wire_ms, max(0.0, token_ms - compute_ms - wire_ms))


def busy_shares(
    ops: Sequence[TimedOp], begin_ms: float, end_ms: float, num_stages: int
) -> tuple[float, ...]:
    """Return the share of a time that each stage computed, between 0 and 1."""
    busy_ms = [0.0] * num_stages
    for op in ops:
        busy_ms[op.stage] += op.compute_ms or 0.0
    width_ms = max(end_ms - begin_ms, 1e-6)
    return tuple(min(1.0, busy / width_ms) for busy in busy_ms)
