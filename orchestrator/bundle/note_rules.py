"""Rules of the diagnosis about what is no failure, yet worth knowing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.bundle.cause import Cause
from orchestrator.bundle.findings import Evidence, Finding, Rank
from orchestrator.bundle.lookup import ready_of, stages_of
from orchestrator.bundle.processes import processes_of
from orchestrator.bundle.reader import Bundle
from orchestrator.bundle.timings import OpTiming, op_timings
from orchestrator.bundle.words import span

# Ops of one token: their times can be compared over the stages.
_STEPS = ("decode_step", "forward_range", "forward_and_sample")
_FEWEST_OPS = 5
_TIMES_SLOWER = 5.0
_SLOW_MS = 20.0
_FEWEST_EVENTS = 3
_CLOCK_LIMIT_MS = 5_000.0
_HOUR_MS = 3_600_000.0


class Pace(NamedTuple):
    """How long one op of a stage takes: computing, the same for each layer, and on the wire."""

    timing: OpTiming
    compute_ms: float
    layer_ms: float
    wire_ms: float


def slow_stage(bundle: Bundle) -> Iterator[Finding]:
    """One stage computes several times as long as any other, for each of its layers as well."""
    paces = _paces(bundle)
    for pace in paces:
        others = [other for other in paces if other is not pace]
        if not others or pace.compute_ms < _SLOW_MS:
            continue
        # The ends compute more than their layers, so both measures must agree.
        most_ms = max(other.compute_ms for other in others)
        most_layer_ms = max(other.layer_ms for other in others)
        if (
            pace.compute_ms >= _TIMES_SLOWER * most_ms
            and pace.layer_ms >= _TIMES_SLOWER * most_layer_ms
        ):
            text = f"computes {span(pace.compute_ms)} for one token, no other more than"
            yield _slow(
                bundle,
                pace,
                Cause.SLOW_STAGE,
                f"{text} {span(most_ms)}",
                "look for another load, too few threads or a slower processor there; give it "
                "fewer layers (layers=, or drop --even-split)",
            )


def slow_link(bundle: Bundle) -> Iterator[Finding]:
    """The way to one stage takes several times as long as that to any other."""
    paces = _paces(bundle)
    for pace in paces:
        most_ms = max((other.wire_ms for other in paces if other is not pace), default=None)
        if most_ms is None or pace.wire_ms < max(_SLOW_MS, _TIMES_SLOWER * most_ms):
            continue
        yield _slow(
            bundle,
            pace,
            Cause.SLOW_LINK,
            f"is {span(pace.wire_ms)} away for each op, no other more than {span(most_ms)}",
            "check the route to that host (`ping`); fewer hosts far away mean fewer such waits",
        )


def _paces(bundle: Bundle) -> list[Pace]:
    paces = []
    for timing in op_timings(bundle):
        compute_ms, wire_ms = timing.compute.median_ms, timing.wire.median_ms
        if timing.op not in _STEPS or timing.compute.count < _FEWEST_OPS or compute_ms is None:
            continue
        ready = ready_of(bundle, timing.stage)
        layers = 1
        if ready is not None and len(ready.layer_range) == 2:
            layers = max(1, ready.layer_range[1] - ready.layer_range[0])
        paces.append(Pace(timing, compute_ms, compute_ms / layers, wire_ms or 0.0))
    return paces


def _slow(bundle: Bundle, pace: Pace, cause: Cause, text: str, advice: str) -> Finding:
    stage, op = pace.timing.stage, pace.timing.op
    host = stages_of(bundle).get(stage, "")
    ops = [kept for kept in bundle.ops if kept.value.stage == stage and kept.value.op == op]
    longest = max(ops, key=lambda kept: kept.value.duration_ms, default=None)
    where = longest.where if longest else "events.jsonl"
    return Finding(
        rule=str(cause),
        cause=cause,
        phase=f"serving {op}",
        rank=Rank.NOTE,
        stage=stage,
        host=host,
        sentence=f"stage {stage} on {host} {text}",
        advice=advice,
        at_ms=longest.value.wall_ms if longest else bundle.manifest.wall_ms,
        evidence=(Evidence(where, f"{pace.timing.count} calls of {op}"),),
    )


def clock_off(bundle: Bundle) -> Iterator[Finding]:
    """A host's clock is not the orchestrator's, or jumped; the timeline does not use it."""
    told: set[str] = set()
    for process in processes_of(bundle):
        stamped = [seen for seen in process.seen if seen.told_ms]
        if len(stamped) < _FEWEST_EVENTS or process.host in told:
            continue
        # Constant, while nobody sets the clock: when the process started, by its host's clock.
        births = [seen.told_ms - seen.uptime_ms for seen in stamped]
        # A message comes late at times, but never before it was written.
        off_ms = max(seen.told_ms - seen.wall_ms for seen in stamped)
        here = bundle.manifest.host or "the orchestrator"
        if max(births) - min(births) > _CLOCK_LIMIT_MS:
            text = f"jumped by {_by(max(births) - min(births))} during the run"
        elif abs(off_ms) > _CLOCK_LIMIT_MS:
            text = f"is {_by(abs(off_ms))} {'ahead of' if off_ms > 0 else 'behind'} that of {here}"
        else:
            continue
        told.add(process.host)
        yield Finding(
            rule="clock_off",
            cause=Cause.CLOCK_OFF,
            rank=Rank.NOTE,
            stage=process.stage,
            host=process.host,
            sentence=f"the clock of {process.host} (stage {process.stage}) {text}",
            advice="set the clocks by NTP (`timedatectl set-ntp true`); the times shown here are "
            "those of the orchestrator",
            at_ms=stamped[0].wall_ms,
            evidence=(Evidence(stamped[0].where, "its own time of day beside that of receipt"),),
        )


def _by(off_ms: float) -> str:
    return f"{off_ms / _HOUR_MS:.1f} h" if off_ms > _HOUR_MS else span(off_ms)
