"""One run of some requests, as the stages' op events tell it: when each computed, and its gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.bundle.processes import processes_of
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.spans import OpSpan, spans_of

# Text, and what frees a cache: no part of the way through the layers.
_BESIDE = ("tokenize", "detokenize", "release", "environment", "vocabulary")

Stretch = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Take:
    """Some requests that ran at once; times are ms of the orchestrator's clock.

    Attributes:
        prompts_end_ms: when the last of them had its first token.
        spans: ops that ran layers, by time.
        new_tokens: of all requests.
    """

    begin_ms: float
    prompts_end_ms: float
    end_ms: float
    spans: tuple[OpSpan, ...]
    new_tokens: int

    @property
    def prompt_ms(self) -> float:
        """Until every request had its first token."""
        return self.prompts_end_ms - self.begin_ms

    @property
    def whole_ms(self) -> float:
        """Until the last token of all."""
        return self.end_ms - self.begin_ms

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all requests by the whole time, prompts included."""
        return self.new_tokens * 1e3 / max(self.whole_ms, 1e-6)

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens that the last stage gave after all prompts, by that time."""
        last = self.spans_of(max((span.stage for span in self.spans), default=0))
        rows = sum(span.event.seq_len or 1 for span in last if span.end_ms > self.prompts_end_ms)
        return rows * 1e3 / max(self.end_ms - self.prompts_end_ms, 1e-6)

    def spans_of(self, stage: int) -> tuple[OpSpan, ...]:
        """Return those of a stage."""
        return tuple(span for span in self.spans if span.stage == stage)

    def busy(self, stage: int) -> tuple[Stretch, ...]:
        """Return the stretches in which a stage computed; none overlaps or touches another."""
        return merged((span.start_ms, span.end_ms) for span in self.spans_of(stage))


@dataclass(frozen=True, slots=True)
class Idle:
    """How a stage spent a time: the share in which it computed, and its gaps, in ms."""

    busy_share: float
    median_gap_ms: float
    longest_gap_ms: float


def take_of(bundle: Bundle, prefix: str) -> Take:
    """Return the take of the requests whose names begin with `prefix`.

    Raises:
        ValueError: the bundle has none of them.
    """
    records = [kept.value for kept in bundle.requests if str(kept.value.rid).startswith(prefix)]
    if not records:
        raise ValueError(f"{bundle.path} has no request {prefix}*")
    begin_ms = min(record.wall_ms for record in records)
    end_ms = max(record.wall_ms + record.duration_ms for record in records)
    spans = tuple(
        span
        for span in spans_of(processes_of(bundle))
        if span.event.op not in _BESIDE and begin_ms <= span.end_ms and span.start_ms <= end_ms
    )
    return Take(
        begin_ms,
        max(record.wall_ms + (record.ttft_ms or 0.0) for record in records),
        end_ms,
        spans,
        sum(record.completion_tokens for record in records),
    )


def merged(stretches: Iterator[Stretch]) -> tuple[Stretch, ...]:
    """Return what stretches cover together, in order."""
    found: list[Stretch] = []
    for begin, end in sorted(stretches):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return tuple(found)


def covered(busy: Sequence[Stretch], begin: float, end: float) -> float:
    """Return the share of a time that stretches cover."""
    inside = sum(max(0.0, min(end, b) - max(begin, a)) for a, b in busy)
    return inside / (end - begin) if end > begin else 0.0


def idle_in(busy: Sequence[Stretch], begin: float, end: float) -> Idle:
    """Return how a time was spent; its ends are gaps as well, where nothing was computed."""
    inside = [(max(begin, a), min(end, b)) for a, b in busy if b > begin and a < end]
    edges = [begin, *(edge for stretch in inside for edge in stretch), end]
    gaps = [b - a for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    return Idle(covered(busy, begin, end), median(gaps or [0.0]), max(gaps, default=0.0))
