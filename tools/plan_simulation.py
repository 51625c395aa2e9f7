"""Plan many models over many hosts and compare each with the best possible split.

``python -m tools.plan_simulation [--seeds N]`` prints, for 2 to 64 hosts of very different memory
and speed, the slowest stage of the plan beside that of the best contiguous split, found by a
program that shares nothing with the planner; then plans of SmolLM2 and of a 671B model.
It ends with 1 where a plan is more than 5 % from the best.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

from orchestrator.bundle.screen import PlainScreen, Table
from orchestrator.placement import DoesNotFit, Slot, place
from orchestrator.placement.table import show_misfit, show_placement
from tools.plan_shapes import GIB, MIB, Shape, moe_671b, random_shape, random_slots, slot
from tools.plan_shapes import smollm2_135m as smollm2
from worker.protocol.costs import ModelCosts

WORST_ALLOWED = 1.05
# What a layer takes beside reading its weights on a CPU, as docs/plan.md has it.
LAYER_MS = 0.4


def best_bottleneck_ms(slots: Sequence[Slot], costs: ModelCosts) -> float | None:
    """Return the smallest step time of the slowest stage, None where nothing fits.

    Exact, by dynamic programming over hosts and layers. Each host is its own machine, has no
    `layers=` and takes a contiguous range or none; disk is not looked at.
    """
    count = costs.num_layers
    best = [0.0] + [float("inf")] * count
    for host in slots:
        cost = costs.quantizations[host.quantization]
        rate = host.read_gbps * 1e6
        layer_bytes = int(LAYER_MS * rate) if host.device == "cpu" else 0
        following = list(best)
        for start in range(count):
            if best[start] == float("inf"):
                continue
            weights = kv = read = 0
            for end in range(start + 1, count + 1):
                weights += cost.layer_weights_bytes[end - 1]
                kv += costs.layer_kv_bytes[end - 1]
                read += cost.layer_read_bytes[end - 1]
                if start == 0:
                    role = cost.whole if end == count else cost.first
                else:
                    role = cost.last if end == count else cost.middle
                need = weights + role.weights_bytes + role.process_bytes
                need += max(kv + role.running_bytes, role.loading_bytes)
                may_end = end == count or costs.cuts is None or end in costs.cuts
                if need <= host.free_bytes and may_end:
                    work = read + role.read_bytes + (end - start) * layer_bytes
                    following[end] = min(following[end], max(best[start], work / rate))
        best = following
    return None if best[count] == float("inf") else best[count]


def compare(hosts: int, seed: int) -> tuple[float, float, float, int] | None:
    """Return the slowest stage of plan and best in ms, seconds of planning, hosts left out."""
    dice = random.Random(seed * 1000 + hosts)
    shape = random_shape(dice, dice.randint(hosts, 200))
    model_bytes = sum(shape.layer_elements) * 2
    slots, costs = random_slots(dice, hosts, model_bytes), shape.costs()
    best_ms = best_bottleneck_ms(slots, costs)
    begin = time.perf_counter()
    try:
        plan = place(slots, costs, max_context=8192)
    except DoesNotFit:
        assert best_ms is None, f"seed {seed}: the planner refuses what fits"
        return None
    took_s = time.perf_counter() - begin
    assert best_ms is not None and plan.bottleneck_ms is not None
    return plan.bottleneck_ms, best_ms, took_s, len(plan.left_out)


def simulate(seeds: int, screen: PlainScreen) -> float:
    """Print the comparison for each number of hosts; return the worst ratio."""
    rows, worst = [], 1.0
    for hosts in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        found = [one for seed in range(seeds) if (one := compare(hosts, seed))]
        ratios = [plan_ms / best_ms for plan_ms, best_ms, _, _ in found]
        worst = max([worst, *ratios])
        rows.append(
            (
                str(hosts),
                f"{len(found)} of {seeds}",
                f"{max(ratios, default=1):.6f}",
                f"{sum(one[3] for one in found) / max(1, len(found)):.1f}",
                f"{max((one[2] for one in found), default=0) * 1000:.0f}",
            )
        )
    headings = (">hosts", ">plans that fit", ">worst / best", ">left out, mean", ">longest ms")
    screen.table(Table(headings, tuple(rows)))
    return worst


def show(title: str, slots: Sequence[Slot], shape: Shape, screen: PlainScreen) -> None:
    """Print one plan, or why there is none."""
    screen.heading(title)
    try:
        show_placement(place(slots, shape.costs(), max_context=8192), screen)
    except DoesNotFit as misfit:
        show_misfit(misfit, screen)
        screen.line(str(misfit))


def uneven_hosts(quantization: str) -> list[Slot]:
    """Return eight hosts, from a workstation to a server of two accelerators."""
    sizes = (
        (512, 300.0, "cpu", "big"),
        (256, 180.0, "cpu", "mid1"),
        (256, 160.0, "cpu", "mid2"),
        (140, 3300.0, "cuda:0", "gpu1"),
        (140, 3300.0, "cuda:1", "gpu1"),
        (128, 90.0, "cpu", "old1"),
        (128, 60.0, "cpu", "old2"),
        (16, 40.0, "cpu", "laptop"),
    )
    return [
        slot(
            number,
            size * GIB,
            gbps,
            device=device,
            host=host,
            machine=host,
            quantization=quantization,
        )
        for number, (size, gbps, device, host) in enumerate(sizes)
    ]


def main() -> int:
    """Run the simulation and print the plans."""
    parser = argparse.ArgumentParser(description="compare plans with the best possible split")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="models for each row")
    seeds = parser.parse_args().seeds
    screen = PlainScreen(sys.stdout)
    worst = simulate(seeds, screen)
    small = [slot(n, size * MIB, 8.0) for n, size in enumerate((300, 700, 450))]
    show("SmolLM2-135M on three uneven hosts", small, smollm2(), screen)
    for quantization in ("nf4", "int8", "bfloat16"):
        title = f"671B (61 layers, 3 dense, 256 experts) as {quantization} on eight uneven places"
        show(title, uneven_hosts(quantization), moe_671b(), screen)
    return 0 if worst <= WORST_ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
