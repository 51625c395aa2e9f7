"""When each worker computed: its op events on the orchestrator's clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.bundle.processes import Process
from orchestrator.bundle.timings import NOT_WORK
from worker.protocol.events import Op


@dataclass(frozen=True, slots=True)
class OpSpan:
    """One op in a worker; `start_ms` is by the orchestrator's clock."""

    stage: int
    start_ms: float
    took_ms: float
    event: Op

    @property
    def end_ms(self) -> float:
        """When the reply was handed on."""
        return self.start_ms + self.took_ms


@dataclass(frozen=True, slots=True)
class Busy:
    """How much of the time a stage computed, from the first op of any stage to the last."""

    stage: int
    busy_ms: float
    window_ms: float

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return min(1.0, self.busy_ms / self.window_ms) if self.window_ms > 0 else 0.0


def spans_of(processes: Iterable[Process]) -> tuple[OpSpan, ...]:
    """Return every op that was work, by time."""
    return tuple(sorted(_spans(processes), key=lambda span: (span.start_ms, span.stage)))


def _spans(processes: Iterable[Process]) -> Iterator[OpSpan]:
    for process in processes:
        for seen in process.seen:
            op = seen.event
            if isinstance(op, Op) and op.op not in NOT_WORK:
                start_ms = process.at_ms(seen) - op.duration_ms
                yield OpSpan(process.stage, start_ms, op.duration_ms, op)


def window_of(spans: tuple[OpSpan, ...]) -> tuple[float, float] | None:
    """Return when the first op began and the last one ended; None where there are none."""
    if not spans:
        return None
    return spans[0].start_ms, max(span.end_ms for span in spans)


def busy_of(spans: tuple[OpSpan, ...]) -> tuple[Busy, ...]:
    """Return how busy each stage was, by stage; time that ops overlap counts once."""
    window = window_of(spans)
    if window is None:
        return ()
    busy_ms: dict[int, float] = {}
    covered_ms: dict[int, float] = {}
    for span in spans:
        begin_ms = max(span.start_ms, covered_ms.get(span.stage, span.start_ms))
        busy_ms[span.stage] = busy_ms.get(span.stage, 0.0) + max(0.0, span.end_ms - begin_ms)
        covered_ms[span.stage] = max(begin_ms, span.end_ms)
    width_ms = window[1] - window[0]
    return tuple(Busy(stage, ms, width_ms) for stage, ms in sorted(busy_ms.items()))
