"""The placement: every layer once, never more memory than there is, never slower than possible."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.layer_plan import PlanError
from orchestrator.placement import DoesNotFit, Placement, Slot, place
from orchestrator.placement.seating import Problem
from orchestrator.placement.solve import fits, solve
from tools.plan_shapes import random_shape, random_slots, slot
from tools.plan_simulation import WORST_ALLOWED, best_bottleneck_ms, compare
from worker.protocol.costs import GroupSize, ModelCosts, QuantizedCost, RoleCost
from worker.protocol.stage import split_layers

GROUPS = "abcdef"


def stage_need(costs: ModelCosts, quantization: str, start: int, end: int) -> int:
    """What the stage needs, from the definition."""
    cost, count = costs.quantizations[quantization], costs.num_layers
    name = {(True, False): "first", (False, True): "last", (True, True): "whole"}
    role: RoleCost = getattr(cost, name.get((start == 0, end == count), "middle"))
    weights = sum(cost.layer_weights_bytes[start:end]) + role.weights_bytes
    kv = sum(costs.layer_kv_bytes[start:end])
    return weights + max(kv + role.running_bytes, role.loading_bytes) + role.process_bytes


def stage_groups(costs: ModelCosts, start: int, end: int) -> set[str]:
    """Which groups the stage needs, from the definition."""
    groups = {name for names in costs.layer_groups[start:end] for name in names}
    groups |= set(costs.first_groups) if start == 0 else set()
    return groups | (set(costs.last_groups) if end == costs.num_layers else set())


def some(dice: random.Random, names: str) -> tuple[str, ...]:
    return tuple(sorted(dice.sample(names, dice.randint(0, 2))))


def model(dice: random.Random, count: int) -> ModelCosts:
    """A model whose every figure is arbitrary; a group may belong to several layers."""

    def sizes() -> tuple[int, ...]:
        return tuple(dice.randint(0, 9) for _ in range(count))

    def role() -> RoleCost:
        return RoleCost(**{name: dice.randint(0, 9) for name in RoleCost.__dataclass_fields__})

    def quantized() -> QuantizedCost:
        return QuantizedCost(
            layer_weights_bytes=sizes(),
            layer_read_bytes=sizes(),
            first=role(),
            middle=role(),
            last=role(),
            whole=role(),
        )

    cuts = sorted(dice.sample(range(1, count), dice.randint(0, count - 1)))
    return ModelCosts(
        layer_kv_bytes=sizes(),
        layer_groups=tuple(some(dice, GROUPS) for _ in range(count)),
        first_groups=some(dice, GROUPS),
        last_groups=some(dice, GROUPS),
        groups={
            name: GroupSize(size_bytes=dice.randint(0, 9), files=(f"{name}.bin",))
            for name in GROUPS
        },
        quantizations={"bfloat16": quantized(), "nf4": quantized()},
        unavailable={},
        cuts=dice.choice((None, tuple(cuts))),
    )


def slots_for(dice: random.Random, costs: ModelCosts) -> list[Slot]:
    """Slots on few machines, some with `layers=`, little memory and little disk."""
    cuts = range(1, costs.num_layers) if costs.cuts is None else costs.cuts
    places = [0, *cuts, costs.num_layers]
    bounds = sorted(dice.sample(places, min(len(places), dice.choice((0, 0, 2, 4)))))
    wishes: list[tuple[int, int] | None] = list(zip(bounds[::2], bounds[1::2], strict=False))
    wishes += [None] * dice.randint(1, 4)
    dice.shuffle(wishes)
    most_bytes = dice.choice((60, 120, 250))
    return [
        slot(
            number,
            dice.randint(0, most_bytes),
            dice.choice((0.0, 1e-6, 2e-6, 3e-6)),
            layers=wished,
            machine=dice.choice(("", "a", "b")),
            device=dice.choice(("cpu", "cuda:0")),
            quantization=dice.choice(("bfloat16", "nf4")),
            resident_bytes=dice.randint(0, 5),
            memory_limit_bytes=dice.choice((None, None, dice.randint(0, most_bytes))),
            disk_free_bytes=dice.randint(0, 80),
            cached_groups=frozenset(some(dice, GROUPS)),
            cached_files=frozenset(dice.choice(((), ("a.bin", "b.bin")))),
        )
        for number, wished in enumerate(wishes)
    ]


def case_of(dice: random.Random) -> tuple[list[Slot], ModelCosts]:
    costs = model(dice, dice.randint(1, 9))
    return slots_for(dice, costs), costs


# Drawn by one seed: hypothesis takes far longer to draw hundreds of figures than planning takes.
CASES = st.integers(0, 1 << 32).map(lambda seed: case_of(random.Random(seed)))


def planned(slots: list[Slot], costs: ModelCosts) -> Placement | None:
    # Why something does not fit is not asked here: advice takes longer than planning.
    try:
        possible = solve(Problem(slots, costs)) is not None
    except PlanError:
        return None
    assert fits(Problem(slots, costs)) == possible
    return place(slots, costs, max_context=1024) if possible else None


@settings(max_examples=200)
@given(CASES)
def test_every_layer_is_on_exactly_one_stage_and_layers_are_kept(
    case: tuple[list[Slot], ModelCosts],
) -> None:
    slots, costs = case
    placement = planned(slots, costs)
    if placement is None:
        return
    starts = {stage.layers[0] for stage in placement.stages} - {0}
    assert costs.cuts is None or starts <= set(costs.cuts)
    covered = [layer for stage in placement.stages for layer in range(*stage.layers)]
    assert covered == list(range(costs.num_layers))
    kept = {stage.index: stage.layers for stage in placement.stages if stage.slot.layers}
    assert kept == {index: slot.layers for index, slot in enumerate(slots) if slot.layers}
    free = [stage.index for stage in placement.stages if stage.slot.layers is None]
    assert free == sorted(set(free))
    assert len(placement.stages) + len(placement.left_out) == len(slots)


@settings(max_examples=200)
@given(CASES)
def test_no_device_and_no_disk_is_asked_for_more_than_it_has(
    case: tuple[list[Slot], ModelCosts],
) -> None:
    slots, costs = case
    placement = planned(slots, costs)
    used: dict[tuple[str, str], list[tuple[Slot, int]]] = defaultdict(list)
    fetched: dict[str, set[str]] = defaultdict(set)
    disks: dict[str, list[int]] = defaultdict(list)
    for stage in placement.stages if placement else ():
        slot, need = stage.slot, stage_need(costs, stage.slot.quantization, *stage.layers)
        parts = (stage.weights_bytes, stage.kv_bytes, stage.scratch_bytes, stage.process_bytes)
        assert sum(parts) == stage.need_bytes == need <= stage.free_bytes
        if slot.memory_limit_bytes is not None:
            assert need + slot.resident_bytes <= slot.memory_limit_bytes
        used[slot.machine or slot.name, slot.device].append((slot, need))
        missing = {
            name
            for name in stage_groups(costs, *stage.layers)
            if name not in slot.cached_groups
            and not slot.cached_files.issuperset(costs.groups[name].files)
        }
        assert stage.download_groups == {name: costs.groups[name].size_bytes for name in missing}
        fetched[slot.machine or slot.name] |= missing
        disks[slot.machine or slot.name].append(slot.disk_free_bytes)
    for together in used.values():
        resident = max(slot.resident_bytes for slot, _ in together)
        need = sum(need for _, need in together) + (len(together) - 1) * resident
        assert need <= min(slot.free_bytes for slot, _ in together)
    for machine, groups in fetched.items():
        assert sum(costs.groups[name].size_bytes for name in groups) <= min(disks[machine])


@settings(max_examples=150)
@given(CASES, st.integers(0, 8), st.integers(0, 40), st.integers(0, 40))
def test_more_memory_and_disk_never_make_a_plan_fail(
    case: tuple[list[Slot], ModelCosts], which: int, memory: int, disk: int
) -> None:
    slots, costs = case
    if planned(slots, costs) is None:
        return
    lucky = slots[which % len(slots)]
    richer = [
        replace(
            slot,
            free_bytes=slot.free_bytes + memory,
            memory_limit_bytes=slot.memory_limit_bytes and slot.memory_limit_bytes + memory,
            disk_free_bytes=slot.disk_free_bytes + disk,
        )
        if slot == lucky
        else slot
        for slot in slots
    ]
    assert planned(richer, costs) is not None


@settings(max_examples=150)
@given(CASES)
def test_the_slowest_stage_is_as_fast_as_can_be_and_only_what_cannot_fit_is_refused(
    case: tuple[list[Slot], ModelCosts],
) -> None:
    drawn, costs = case
    slots = [
        replace(
            slot,
            layers=None,
            machine=slot.name,
            memory_limit_bytes=None,
            disk_free_bytes=1000,
            read_gbps=slot.read_gbps or 1e-6,
            cached_groups=frozenset(),
            cached_files=frozenset(),
        )
        for slot in drawn
    ]
    placement = planned(slots, costs)
    best_ms = best_bottleneck_ms(slots, costs)
    assert (placement is None) == (best_ms is None)
    if placement is not None:
        assert placement.bottleneck_ms == pytest.approx(best_ms, rel=1e-12)


@given(st.integers(1, 70), st.integers(1, 12), st.integers(0, 30))
def test_equal_hosts_whose_ends_weigh_nothing_get_the_even_split(
    num_layers: int, num_hosts: int, spare_mib: int
) -> None:
    shape = random_shape(random.Random(0), 1)
    flat = replace(
        shape,
        layer_elements=[1 << 20] * num_layers,
        active_elements=[1 << 20] * num_layers,
        end_elements=0,
    )
    need = stage_need(flat.costs(), "bfloat16", 0, -(-num_layers // num_hosts))
    slots = [slot(number, need + (spare_mib << 20)) for number in range(num_hosts)]
    placement = place(slots, flat.costs(), max_context=1024)
    used = min(num_hosts, num_layers)
    even = [(s.shard_start, s.shard_end) for s in split_layers(num_layers, used)]
    assert [(stage.index, stage.layers) for stage in placement.stages] == list(enumerate(even))


@pytest.mark.parametrize("hosts", [2, 3, 5, 9, 17, 33, 64])
def test_simulated_hosts_of_any_size_are_planned_as_well_as_possible(hosts: int) -> None:
    found = compare(hosts, seed=7)
    assert found is not None
    plan_ms, best_ms, _, _ = found
    assert plan_ms == pytest.approx(best_ms, rel=1e-9)
    assert plan_ms <= WORST_ALLOWED * best_ms


def test_64_hosts_and_200_layers_that_do_not_fit_are_refused_with_advice() -> None:
    dice = random.Random(3)
    shape = random_shape(dice, 200)
    slots = random_slots(dice, 64, 2 * sum(shape.layer_elements) // 5)
    slots = [replace(one, quantization="bfloat16") for one in slots]
    with pytest.raises(DoesNotFit) as caught:
        place(slots, shape.costs(), max_context=4096)
    assert len(caught.value.shortfalls) == 64
    assert caught.value.remedies
