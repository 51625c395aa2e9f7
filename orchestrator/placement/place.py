"""Plan which slot holds which layers."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.layer_plan import PlanError
from orchestrator.placement.amounts import room_words, size_words, step_words
from orchestrator.placement.forecast import left_out_words, shared_words, warnings
from orchestrator.placement.misfit import DoesNotFit
from orchestrator.placement.placement import LeftOut, PlacedStage, Placement
from orchestrator.placement.seat import Seat
from orchestrator.placement.seating import Problem
from orchestrator.placement.slot import Slot
from orchestrator.placement.solve import Link, Solution, solve
from orchestrator.placement.track import Track
from worker.protocol.costs import ModelCosts


def place(slots: Sequence[Slot], costs: ModelCosts, *, max_context: int) -> Placement:
    """Give every layer to one slot, in file order; slots with `layers=` keep theirs.

    The split is the one with the fastest slowest stage, and of those the one that leaves the
    fullest host most memory; docs/plan.md has all of it.

    Args:
        slots: in file order.
        max_context: positions that `costs` were counted for.

    Raises:
        DoesNotFit: memory or disk do not suffice; it says what would.
        PlanError: `layers=` contradict each other or the model, a quantization cannot be used, or
            there is no slot.
    """
    if not slots:
        raise PlanError("there is no host for a stage; add a line to the hosts file")
    problem = Problem(slots, costs)
    solution = solve(problem)
    if solution is None:
        raise DoesNotFit.of(problem, max_context)
    stages = tuple(_stage(link) for link in solution.links)
    left_out = _left_out(problem, solution)
    known = [stage.step_ms for stage in stages if stage.step_ms is not None]
    all_known = len(known) == len(stages)
    return Placement(
        num_layers=costs.num_layers,
        stages=stages,
        left_out=left_out,
        notes=(
            *shared_words(slots),
            *left_out_words(left_out, slots),
            *warnings(stages, solution.best_ms),
        ),
        bottleneck_ms=max(known) if all_known else None,
        tokens_per_s=_tokens_per_s(solution) if all_known else None,
    )


def _tokens_per_s(solution: Solution) -> float | None:
    """Bound one request: its stages compute in turn, each with its device to itself."""
    token_ms = sum(seat.alone_ms(*layers) for seat, layers in solution.links)
    return 1000 / token_ms if token_ms > 0 else None


def _stage(link: Link) -> PlacedStage:
    seat, (start, end) = link
    need = seat.costs.need(start, end)
    return PlacedStage(
        index=seat.index,
        slot=seat.slot,
        layers=(start, end),
        weights_bytes=need.weights_bytes,
        kv_bytes=need.kv_bytes,
        scratch_bytes=need.scratch_bytes,
        process_bytes=need.process_bytes,
        free_bytes=seat.memory_bytes,
        download_groups=seat.download.sizes(start, end),
        step_ms=seat.step_ms(start, end) if seat.slot.read_gbps else None,
    )


def _left_out(problem: Problem, solution: Solution) -> tuple[LeftOut, ...]:
    """Say why each slot that got no layers got none."""
    offered = [index for index in range(len(problem.slots)) if index not in solution.crowded]
    seats = {seat.index: seat for seat in problem.seat(offered).free}
    reasons = {
        index: (
            "the other stages on its device need the memory or the disk that it would take"
            if index in solution.crowded
            else _reason(seats[index], problem.track, solution)
        )
        for index in range(len(problem.slots))
        if index not in solution.used
    }
    return tuple(
        LeftOut(problem.slots[index].name, problem.slots[index].host, reason)
        for index, reason in reasons.items()
    )


def _reason(seat: Seat, track: Track, solution: Solution) -> str:
    if not track.units:
        return "all layers are given to other lines with layers="
    least = "a single layer" if len(track.units) == track.num_free else "its shortest stage"
    need_bytes = min(seat.costs.need_bytes(*unit) for unit in track.units)
    if need_bytes > seat.memory_bytes:
        return (
            f"{least} needs {size_words(need_bytes)} there and it has "
            f"{room_words(seat.memory_bytes)}"
        )
    fetched_bytes = min(seat.download.size_bytes(*unit) for unit in track.units)
    if fetched_bytes > seat.disk_bytes:
        return (
            f"{least} is {size_words(fetched_bytes)} to fetch and its disk has "
            f"{room_words(seat.disk_bytes)}"
        )
    step_ms = min(seat.step_ms(*unit) for unit in track.units)
    if step_ms > solution.bottleneck_ms:
        return (
            f"it would be the slowest: {least} takes {step_words(step_ms)} ms a token there, the "
            f"slowest stage {step_words(solution.bottleneck_ms)} ms without it"
        )
    if sum(seat.own is None for seat, _ in solution.links) == len(track.units):
        return "there are more stages than layers for them"
    return (
        "with a stage more the slowest one would take more than "
        f"{step_words(solution.bottleneck_ms)} ms a token"
    )
