"""What a user should hear about a plan before it runs: one sentence each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from orchestrator.layer_plan import stages_of
from orchestrator.placement.amounts import room_words, size_words, step_words
from orchestrator.placement.placement import LeftOut, PlacedStage
from orchestrator.placement.slot import Slot

# A stage that takes more than this many times the mean is named.
_SLOW_FACTOR = 2
# A download that leaves less than this part of the disk is named.
_FULL_DISK = 0.05


def left_out_words(left_out: Sequence[LeftOut], slots: Sequence[Slot]) -> list[str]:
    """Name the slots that are left out, those of one line together."""
    of_line = Counter((slot.name, slot.host) for slot in slots)
    return [
        f"{stages_of(count, of_line[left.name, left.host])}{left.name} ({left.host}) left out: "
        f"{left.reason}"
        for left, count in Counter(left_out).items()
    ]


def shared_words(slots: Sequence[Slot]) -> Iterator[str]:
    """Name the hosts that are one machine under several names: each sees the same memory free."""
    devices: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for slot in slots:
        devices[slot.shared_device][slot.host] = None
    for (_, device), hosts in devices.items():
        if len(hosts) > 1:
            *others, last = hosts
            memory = "its memory" if device == "cpu" else f"the memory of its {device}"
            yield f"{', '.join(others)} and {last} are one machine and share {memory}"


def warnings(stages: Sequence[PlacedStage], best_ms: float | None) -> Iterator[str]:
    """Name what is tight, slow or not known.

    Args:
        best_ms: the slowest stage's step of the best split, where another was kept because
            nothing has to be fetched for it; else None.
    """
    yield from _tight(stages)
    yield from _slow(stages)
    if best_ms is not None:
        yield (
            "the layers stay where they are cached; split anew, the slowest stage would take "
            f"{step_words(best_ms)} ms a token"
        )
    yield from _full_disks(stages)


def _tight(stages: Sequence[PlacedStage]) -> Iterator[str]:
    for stage in stages:
        if stage.tight:
            left_bytes = max(0, stage.free_bytes - stage.need_bytes)
            yield (
                f"{_name(stage)} is tight: {room_words(left_bytes)} of "
                f"{room_words(stage.free_bytes)} would be left; end other programs there, or give "
                "it fewer layers with layers="
            )


def _slow(stages: Sequence[PlacedStage]) -> Iterator[str]:
    known = [stage.step_ms for stage in stages if stage.step_ms is not None]
    if len(known) < len(stages):
        unknown = [_name(stage) for stage in stages if stage.step_ms is None]
        yield f"the speed of {unknown[0]} is not known; it counts as the slowest host's"
        return
    mean_ms = sum(known) / len(known)
    slowest = max(stages, key=lambda stage: stage.step_ms or 0.0)
    slowest_ms = slowest.step_ms or 0.0
    if slowest_ms > _SLOW_FACTOR * mean_ms:
        yield (
            f"{_name(slowest)} holds the others up: {step_words(slowest_ms)} ms a token, "
            f"{step_words(mean_ms)} ms in the mean; more memory on faster hosts would help"
        )


def _full_disks(stages: Sequence[PlacedStage]) -> Iterator[str]:
    machines: dict[str, list[PlacedStage]] = defaultdict(list)
    for stage in stages:
        machines[stage.slot.shared_machine].append(stage)
    for together in machines.values():
        disk_bytes = min(stage.slot.disk_free_bytes for stage in together)
        groups = {
            (each.slot.cache_path, name): size
            for each in together
            for name, size in each.download_groups.items()
        }
        fetched_bytes = sum(groups.values())
        if fetched_bytes and disk_bytes - fetched_bytes < _FULL_DISK * disk_bytes:
            yield (
                f"the disk of {_name(together[0])} will be nearly full: "
                f"{size_words(fetched_bytes)} to fetch, {room_words(disk_bytes)} free"
            )


def _name(stage: PlacedStage) -> str:
    return f"{stage.slot.name} ({stage.slot.host})"
