"""Where the time of the ops went: computing, on the wire, or waiting for work."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from orchestrator.bundle.lookup import Seen, events
from orchestrator.bundle.reader import Bundle, Kept
from orchestrator.bundle.records import OpRecord
from worker.protocol.events import Op, Starting
from worker.protocol.ops import RequestId, Together

NOT_WORK = ("ping", "shutdown")

Key = tuple[int, int, str, RequestId]  # stage, process, op, request


@dataclass(frozen=True, slots=True)
class Spread:
    """Some durations: how many, their median, 95th percentile and sum; None of none."""

    count: int
    median_ms: float | None
    total_ms: float
    p95_ms: float | None = None


@dataclass(frozen=True, slots=True)
class OpTiming:
    """All calls of one op on one stage.

    Attributes:
        compute: in the worker, from taking the line up to handing the reply on.
        wire: what the orchestrator waited beyond that: pipes, network, encoding, queueing.
        idle: how long the worker had had nothing to do before; the first op of each request is
            left out, for before it nobody may have asked for anything.
    """

    stage: int
    op: str
    count: int
    failed: int
    compute: Spread
    wire: Spread
    idle: Spread
    sent_bytes: int
    received_bytes: int


@dataclass(slots=True)
class _Samples:
    sent: int = 0
    done: int = 0
    failed: int = 0
    compute: list[float] = field(default_factory=list)
    wire: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    sent_bytes: int = 0
    received_bytes: int = 0


def op_timings(bundle: Bundle) -> tuple[OpTiming, ...]:
    """Return the timings by stage, and within a stage in the order of first use."""
    starts = _process_starts(bundle)
    samples: dict[tuple[int, str], _Samples] = defaultdict(_Samples)
    waiting: dict[Key, list[float]] = defaultdict(list)
    known: set[tuple[int, int, RequestId]] = set()
    for seen in events(bundle, Op):
        if seen.event.op in NOT_WORK:
            continue
        process = bisect_right(starts[seen.stage], seen.wall_ms)
        _add_event(samples[seen.stage, seen.event.op], seen, process, known)
        if not seen.after_gap:
            key = (seen.stage, process, seen.event.op, seen.event.rid)
            waiting[key].append(seen.event.duration_ms)
    # Ops of one request and kind are answered in order, so the n-th reply has the n-th event.
    nth: dict[Key, int] = defaultdict(int)
    for kept in bundle.ops:
        op = kept.value
        if op.op in NOT_WORK:
            continue
        key = (op.stage, bisect_right(starts[op.stage], op.wall_ms), op.op, op.rid)
        number, nth[key] = nth[key], nth[key] + 1
        _add_op(samples[op.stage, op.op], kept, waiting[key][number : number + 1])
    return tuple(
        _timing(stage, op, samples[stage, op]) for stage, op in sorted(samples, key=lambda k: k[0])
    )


def _process_starts(bundle: Bundle) -> dict[int, list[float]]:
    starts: dict[int, list[float]] = defaultdict(list)
    for seen in events(bundle, Starting):
        starts[seen.stage].append(seen.wall_ms)
    for times in starts.values():
        times.sort()
    return starts


def _add_event(
    samples: _Samples, seen: Seen[Op], process: int, known: set[tuple[int, int, RequestId]]
) -> None:
    # What goes together has a name of its own each time, and requests that go on.
    rid = Together.op if seen.event.op == Together.op else seen.event.rid
    request = (seen.stage, process, rid)
    samples.done += 1
    samples.failed += not seen.event.ok
    samples.compute.append(seen.event.duration_ms)
    if request in known:
        samples.idle.append(seen.event.idle_ms_before)
    known.add(request)


def _add_op(samples: _Samples, kept: Kept[OpRecord], worker_ms: list[float]) -> None:
    op = kept.value
    samples.sent += 1
    samples.sent_bytes += op.sent_bytes
    samples.received_bytes += op.received_bytes
    samples.failed += not op.ok and not worker_ms
    if worker_ms and not kept.after_gap:
        samples.wire.append(max(0.0, op.duration_ms - worker_ms[0]))


def _timing(stage: int, op: str, samples: _Samples) -> OpTiming:
    return OpTiming(
        stage,
        op,
        max(samples.sent, samples.done),
        samples.failed,
        _spread(samples.compute),
        _spread(samples.wire),
        _spread(samples.idle),
        samples.sent_bytes,
        samples.received_bytes,
    )


def _spread(values: Iterable[float]) -> Spread:
    kept = sorted(float(value) for value in values)
    if not kept:
        return Spread(0, None, 0.0)
    nearest = math.ceil(0.95 * len(kept)) - 1
    return Spread(len(kept), median(kept), sum(kept), kept[nearest])
