"""What would make a model fit that does not: each way is tried by planning it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.layer_plan import PlanError
from orchestrator.placement.amounts import size_words
from orchestrator.placement.search import least_bytes, most
from orchestrator.placement.seating import Problem
from orchestrator.placement.slot import Slot
from orchestrator.placement.solve import fits
from orchestrator.placement.stage_cost import at_context

# Contexts are proposed in steps of so many positions.
_CONTEXT_STEP = 256
_MIB = 1 << 20  # the step of `least_bytes`
_PLENTY_BYTES = 1 << 60


def remedies(problem: Problem, max_context: int) -> list[str]:
    """Return what would make the model fit, as words that complete "it would fit with"."""
    return [
        *_quantizations(problem),
        *_context(problem, max_context),
        *_disk(problem),
        *_without_layers(problem),
        *_more_memory(problem),
        *_more_hosts(problem),
    ]


def _fits(problem: Problem, slots: Sequence[Slot]) -> bool:
    try:
        return fits(problem.with_slots(slots))
    except PlanError:
        return False


def _quantizations(problem: Problem) -> Iterator[str]:
    """Yield each quantization that fits when all hosts use it, and takes less than now."""
    found = [
        name
        for name in problem.costs.quantizations
        if any(slot.quantization != name for slot in problem.slots)
        and _fits(problem, [replace(slot, quantization=name) for slot in problem.slots])
    ]
    if found:
        everywhere = (
            " on every host" if len({slot.quantization for slot in problem.slots}) > 1 else ""
        )
        yield f"quantization {' or '.join(found)}{everywhere}"


def _context(problem: Problem, max_context: int) -> Iterator[str]:
    def possible(steps: int) -> bool:
        costs = at_context(problem.costs, steps * _CONTEXT_STEP / max_context)
        return fits(Problem(problem.slots, costs))

    steps = most(max_context // _CONTEXT_STEP, possible)
    if steps:
        yield f"a context of about {steps * _CONTEXT_STEP} positions instead of {max_context}"


def _disk(problem: Problem) -> Iterator[str]:
    """Yield how much more each disk needs, where disks alone are in the way."""
    slots = [replace(slot, disk_free_bytes=_PLENTY_BYTES) for slot in problem.slots]
    if not _fits(problem, slots):
        return
    needed: list[str] = []
    seen: set[str] = set()
    # One after the other: what is asked of the first counts when the next one is looked at. The
    # slots of one machine are taken to have what the one with least has.
    for slot in sorted(problem.slots, key=lambda slot: slot.disk_free_bytes):
        if slot.shared_machine in seen:
            continue
        seen.add(slot.shared_machine)

        def enough(more_bytes: int, slot: Slot = slot, slots: Sequence[Slot] = slots) -> bool:
            return _fits(problem, _with_disk(slots, slot, slot.disk_free_bytes + more_bytes))

        extra_bytes = 0 if enough(0) else least_bytes(enough, _PLENTY_BYTES) or 0
        slots = _with_disk(slots, slot, slot.disk_free_bytes + extra_bytes)
        if extra_bytes:
            needed.append(f"{size_words(extra_bytes)} more on the disk of {slot.host}")
    yield " and ".join(needed)


def _with_disk(slots: Sequence[Slot], at: Slot, disk_bytes: int) -> list[Slot]:
    return [
        replace(slot, disk_free_bytes=disk_bytes)
        if slot.shared_machine == at.shared_machine
        else slot
        for slot in slots
    ]


def _without_layers(problem: Problem) -> Iterator[str]:
    given = [slot for slot in problem.slots if slot.layers]
    chosen = [replace(slot, layers=None, is_even=False) for slot in problem.slots]
    if given and _fits(problem, chosen):
        # Without any, slots that are all alike would be given even shares again.
        even = any(slot.is_even for slot in given)
        yield "uneven layers= in a hosts file" if even else "no layers= in the hosts file"


def _more_memory(problem: Problem) -> Iterator[str]:
    """Yield the device that needs least more, where more on one device is enough."""
    best: tuple[int, Slot] | None = None
    for slot in {slot.shared_device: slot for slot in problem.slots}.values():

        def enough(more_bytes: int, slot: Slot = slot) -> bool:
            return _fits(problem, _with_memory(problem.slots, slot, more_bytes))

        # A device that needs as much as the best so far is no news.
        most_bytes = best[0] - _MIB if best else _PLENTY_BYTES
        more_bytes = least_bytes(enough, most_bytes) if most_bytes > 0 else None
        if more_bytes is not None:
            best = more_bytes, slot
    if best is not None:
        yield _more_words(problem, *best)


def _more_words(problem: Problem, more_bytes: int, at: Slot) -> str:
    """Say whether it is the memory itself that must be more, its bound in the file, or both."""
    more = size_words(more_bytes)
    if _fits(problem, _with_memory(problem.slots, at, more_bytes, limits=False)):
        return f"{more} more on {at.host}"
    limited = _limited(problem, at)
    if _fits(problem, _with_memory(problem.slots, at, more_bytes, free=False)):
        return f"memory= larger by {more} on {limited}"
    there = "" if limited == at.host else f" on {limited}"
    return f"{more} more on {at.host} and memory= larger by as much{there}"


def _limited(problem: Problem, at: Slot) -> str:
    """Return the host, or its lines with a bound where several lines have its name."""
    if len({slot.name for slot in problem.slots if slot.host == at.host}) == 1:
        return at.host
    lines = {
        slot.name: None
        for slot in problem.slots
        if slot.shared_device == at.shared_device and slot.memory_limit_bytes
    }
    return " and ".join(lines)


def _with_memory(
    slots: Sequence[Slot], at: Slot, more_bytes: int, *, free: bool = True, limits: bool = True
) -> list[Slot]:
    return [
        replace(
            slot,
            free_bytes=slot.free_bytes + more_bytes * free,
            memory_limit_bytes=slot.memory_limit_bytes
            and slot.memory_limit_bytes + more_bytes * limits,
        )
        if slot.shared_device == at.shared_device
        else slot
        for slot in slots
    ]


def _more_hosts(problem: Problem) -> Iterator[str]:
    """Yield how much one more host at the end of the file would need, or two equal ones."""
    for count, name in ((1, "one more host"), (2, "two more hosts")):

        def enough(free_bytes: int, count: int = count) -> bool:
            return _fits(
                problem, [*problem.slots, *_new_hosts(problem.slots[-1], count, free_bytes)]
            )

        each_bytes = least_bytes(enough, _PLENTY_BYTES)
        if each_bytes is not None:
            each = "" if count == 1 else " each"
            yield f"{name} of {size_words(each_bytes)} free{each} at the end of the hosts file"
            return


def _new_hosts(like: Slot, count: int, free_bytes: int) -> Iterator[Slot]:
    for number in range(count):
        yield replace(
            like,
            name=f"new host {number + 1}",
            host=f"new host {number + 1}",
            machine=f"new host {number + 1}",
            layers=None,
            is_even=False,
            free_bytes=free_bytes,
            memory_limit_bytes=None,
            disk_free_bytes=_PLENTY_BYTES,
        )
