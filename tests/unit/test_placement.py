"""The placement: what each host gets, what is left out and why, what is said aloud."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.bundle.screen import PlainScreen
from orchestrator.layer_plan import PlanError
from orchestrator.placement import DoesNotFit, Placement, Slot, place
from orchestrator.placement.table import show_placement
from tests.support.plan_costs import NOTHING, flat_costs, with_roles
from tools.plan_shapes import GIB, MIB, Shape, moe_671b, slot
from worker.protocol.costs import ModelCosts

TIGHT = "would be left; end other programs there, or give it fewer layers with layers="
WEIGHS = replace(NOTHING, weights_bytes=2 * GIB)
LAYER_MS = 0.4  # what a layer takes beside reading its weights


def hosts(*free_gib: float, **common: object) -> list[Slot]:
    return [slot(number, int(gib * GIB), **common) for number, gib in enumerate(free_gib)]  # type: ignore[arg-type]


def planned(slots: Sequence[Slot], costs: ModelCosts) -> Placement:
    return place(slots, costs, max_context=8192)


def layers(placement: Placement) -> list[tuple[str, tuple[int, int]]]:
    return [(stage.slot.host, stage.layers) for stage in placement.stages]


def test_a_host_of_exactly_the_need_is_enough_and_a_byte_less_is_not() -> None:
    assert layers(planned(hosts(4, 4), flat_costs(8))) == [("host1", (0, 4)), ("host2", (4, 8))]
    short = [slot(0, 4 * GIB), slot(1, 4 * GIB - 1)]
    with pytest.raises(DoesNotFit, match="only the first 7 of its 8 layers find room"):
        planned(short, flat_costs(8))


def test_the_spare_layer_never_goes_to_the_tightest_host() -> None:
    # 100 layers of 1 GB: hosts of 97.5 and twice 1.25 GB.
    gb = 10**9
    slots = [slot(n, int(size * gb)) for n, size in enumerate((97.5, 1.25, 1.25))]
    assert layers(planned(slots, flat_costs(99, gb))) == [
        ("host1", (0, 97)),
        ("host2", (97, 98)),
        ("host3", (98, 99)),
    ]
    # Seven layers on hosts of equal speed: one must take three, and the roomiest does.
    assert layers(planned(hosts(3.5, 9, 4), flat_costs(7))) == [
        ("host1", (0, 2)),
        ("host2", (2, 5)),
        ("host3", (5, 7)),
    ]


def test_layers_are_in_proportion_to_speed_where_memory_is_ample() -> None:
    slots = [slot(n, 100 * GIB, gbps) for n, gbps in enumerate((10.0, 30.0, 20.0))]
    assert layers(planned(slots, flat_costs(12))) == [
        ("host1", (0, 2)),
        ("host2", (2, 8)),
        ("host3", (8, 12)),
    ]


def test_small_layers_take_longer_than_their_weights_beside_a_large_head() -> None:
    # SmolLM2's shape: 30 layers of 7 MB and a head of 8 layers' weights. At 17.7 GB/s a layer was
    # measured to take 0.83 ms and the head 3.9; by bytes alone 19 layers would be on one side.
    head = replace(NOTHING, read_bytes=56_600_000)
    costs = with_roles(flat_costs(30, 7_080_000), last=head, whole=head)
    slots = [slot(n, GIB, 17.7) for n in range(2)]
    assert [stage.layers for stage in planned(slots, costs).stages] == [(0, 17), (17, 30)]


def test_the_time_of_layers_was_measured_on_cpus_and_counts_there_alone() -> None:
    # By bytes the GPU is alone the fastest; a term for its layers would give the CPU two of them.
    slots = [slot(0, 99 * GIB, 20.0), slot(1, 99 * GIB, 1500.0, device="cuda:0")]
    placement = planned(slots, flat_costs(22, 100 * 10**6))
    assert [stage.layers for stage in placement.stages] == [(0, 22)]


def test_memory_bounds_a_fast_host_first() -> None:
    slots = [slot(0, 100 * GIB, 10.0), slot(1, 3 * GIB, 1000.0)]
    placement = planned(slots, flat_costs(12))
    assert layers(placement) == [("host1", (0, 9)), ("host2", (9, 12))]


def test_ends_that_weigh_something_take_fewer_layers() -> None:
    costs = with_roles(flat_costs(8), first=WEIGHS, last=WEIGHS)
    assert [stage.layers for stage in planned(hosts(4, 4, 4), costs).stages] == [
        (0, 2),
        (2, 6),
        (6, 8),
    ]


def test_the_need_of_a_stage_is_what_its_worker_will_check() -> None:
    role = replace(
        NOTHING,
        weights_bytes=10 * MIB,
        running_bytes=3 * MIB,
        loading_bytes=40 * MIB,
        process_bytes=5 * MIB,
    )
    costs = with_roles(flat_costs(2, 100 * MIB, kv_bytes=7 * MIB), whole=role)
    (stage,) = planned(hosts(1), costs).stages
    parts = (stage.weights_bytes, stage.kv_bytes, stage.scratch_bytes, stage.process_bytes)
    assert [part // MIB for part in parts] == [210, 14, 40 - 14, 5]


def test_tied_ends_are_held_by_both_and_fetched_by_both_but_once_on_one_machine() -> None:
    shape = Shape(
        layer_elements=[MIB] * 4,
        active_elements=[MIB] * 4,
        end_elements=8 * MIB,
        tied=True,
        kv_bytes=0,
        running_bytes=0,
    )
    apart = planned(hosts(1, 1), shape.costs())
    assert [stage.download_bytes // MIB for stage in apart.stages] == [22, 18]
    assert [stage.weights_bytes // MIB for stage in apart.stages] == [22, 18]
    assert apart.download_bytes == 40 * MIB
    together = hosts(1, 1, machine="m")
    assert planned(together, shape.costs()).download_bytes == 24 * MIB
    together[1] = replace(together[1], cache_path="/other")
    assert planned(together, shape.costs()).download_bytes == 40 * MIB


def test_only_the_chosen_experts_count_for_speed_and_all_for_memory() -> None:
    slots = [slot(n, 800 * GIB, 100.0, quantization="int8") for n in range(2)]
    dense, sparse = planned(slots, moe_671b().costs()).stages
    # 29 sparse layers and the head are read in about the time of 3 dense and 29 sparse ones.
    assert (dense.layers, sparse.layers) == ((0, 32), (32, 61))
    assert dense.weights_bytes > 300 * GIB
    assert dense.step_ms == pytest.approx(sparse.step_ms, rel=0.1)


def test_each_slot_counts_at_its_own_quantization() -> None:
    slots = [slot(0, 4 * GIB), slot(1, 4 * GIB, quantization="nf4")]
    costs = flat_costs(20, parts=(1.0, 0.5, 0.25))
    assert layers(planned(slots, costs)) == [("host1", (0, 4)), ("host2", (4, 20))]


def test_slots_of_one_device_share_its_memory_and_speed() -> None:
    together = hosts(9, 9, machine="m", resident_bytes=GIB)
    placement = planned([*together, slot(2, 100 * GIB)], flat_costs(8))
    # 9 GiB less the libraries of the second worker, in two parts; half the speed for each.
    assert [stage.free_bytes // GIB for stage in placement.stages] == [4, 4, 100]
    assert [stage.layers for stage in placement.stages] == [(0, 2), (2, 4), (4, 8)]
    # One request computes in turn: each stage has the whole speed then.
    assert placement.tokens_per_s == pytest.approx(1000 / (8 * GIB / 10e6))
    assert placement.notes[0] == "host1 and host2 are one machine and share its memory"


def test_slots_of_one_device_have_the_speed_that_was_measured_best() -> None:
    # They were measured at the same time and disturbed each other; which one is chance.
    for first, second in ((4.0, 12.0), (12.0, 4.0), (0.0, 12.0)):
        together = [slot(0, 99 * GIB, first, machine="m"), slot(1, 99 * GIB, second, machine="m")]
        placement = planned(together, flat_costs(12))
        assert [stage.layers for stage in placement.stages] == [(0, 6), (6, 12)]
        assert placement.bottleneck_ms == pytest.approx(6 * (GIB / 6e6 + LAYER_MS))


def test_slots_are_taken_off_a_device_where_their_libraries_leave_no_room() -> None:
    together = [slot(0, 4 * GIB, machine="m", resident_bytes=GIB)] * 3
    placement = planned(together, flat_costs(4))
    assert layers(placement) == [("host1", (0, 4))]
    assert placement.notes[0] == (
        "2 of 3 stages of hosts.txt:1 (host1) left out: the other stages on its device need the "
        "memory or the disk that it would take"
    )


def test_a_memory_limit_bounds_the_worker_with_its_libraries() -> None:
    slots = [slot(0, 99 * GIB, memory_limit_bytes=3 * GIB, resident_bytes=GIB), slot(1, 9 * GIB)]
    assert layers(planned(slots, flat_costs(8))) == [("host1", (0, 2)), ("host2", (2, 8))]


def test_wished_layers_are_kept_and_gaps_are_filled_in_file_order() -> None:
    slots = hosts(50, 50, 50, 50)
    slots[1] = replace(slots[1], layers=(60, 128))
    slots[3] = replace(slots[3], layers=(0, 20))
    assert layers(planned(slots, flat_costs(128, GIB // 2))) == [
        ("host4", (0, 20)),
        ("host1", (20, 40)),
        ("host3", (40, 60)),
        ("host2", (60, 128)),
    ]


@pytest.mark.parametrize(
    ("wished", "message"),
    [
        ([(0, 8), (7, 9)], "hosts.txt:2: layers=7:9 overlaps layers=0:8 of hosts.txt:1"),
        ([(0, 10)], "hosts.txt:1: layers=0:10 goes beyond the model, which has 9 layers"),
        ([(0, 8)], "hosts.txt:1: beside layers=0:8, layers 8:9 of 0:9 are on no stage"),
        ([(0, 4), None], "hosts.txt:1: layers= cuts the model at layer 4, where it cannot be"),
    ],
)
def test_layers_that_contradict_are_one_sentence(
    wished: list[tuple[int, int] | None], message: str
) -> None:
    slots = [slot(n, 99 * GIB, layers=pair) for n, pair in enumerate(wished)]
    with pytest.raises(PlanError) as caught:
        planned(slots, replace(flat_costs(9), cuts=(3, 6)))
    assert str(caught.value).startswith(message)


def test_the_model_is_parted_only_where_it_can_be() -> None:
    costs = replace(flat_costs(9), cuts=(3, 6))
    assert [stage.layers for stage in planned(hosts(5, 6, 5), costs).stages] == [
        (0, 3),
        (3, 6),
        (6, 9),
    ]
    placement = planned(hosts(2, 9, 9), costs)
    assert [stage.layers for stage in placement.stages] == [(0, 3), (3, 9)]
    assert placement.left_out[0].reason == (
        "its shortest stage needs 3.00 GiB there and it has 2.00 GiB"
    )


@pytest.mark.parametrize(
    ("fourth", "reason"),
    [
        (slot(3, GIB // 2), "a single layer needs 1.00 GiB there and it has 512 MiB"),
        (
            slot(3, 9 * GIB, disk_free_bytes=GIB // 2),
            "a single layer is 1.00 GiB to fetch and its disk has 512 MiB",
        ),
        (
            slot(3, 9 * GIB, 1.0),
            (
                "it would be the slowest: a single layer takes 1074 ms a token there, the slowest "
                "stage 108 ms without it"
            ),
        ),
        (slot(3, 9 * GIB), "there are more stages than layers for them"),
    ],
)
def test_a_slot_that_is_left_out_is_named_with_the_reason(fourth: Slot, reason: str) -> None:
    placement = planned([*hosts(9, 9, 9), fourth], flat_costs(3))
    assert [(left.name, left.reason) for left in placement.left_out] == [("hosts.txt:4", reason)]
    assert f"hosts.txt:4 (host4) left out: {reason}" in placement.notes


def test_what_is_cached_is_not_fetched_again() -> None:
    slots = hosts(9, 9)
    slots[0] = replace(slots[0], cached_groups=frozenset({"layers.1"}))
    slots[1] = replace(slots[1], cached_files=frozenset({"file1", "ends"}))
    placement = planned(slots, flat_costs(4))
    assert [dict(stage.download_groups) for stage in placement.stages] == [
        {"layers.0": GIB, "embed": 0},
        {},
    ]
    assert placement.download_bytes == GIB


def test_layers_stay_where_they_are_cached_though_measured_speeds_vary() -> None:
    costs = flat_costs(12)
    first = planned([slot(0, 99 * GIB, 10.0), slot(1, 99 * GIB, 10.0)], costs)
    filled = [
        replace(stage.slot, read_gbps=gbps, cached_groups=frozenset(stage.download_groups))
        for stage, gbps in zip(first.stages, (10.0, 14.0), strict=True)
    ]
    again = planned(filled, costs)
    assert [stage.layers for stage in again.stages] == [(0, 6), (6, 12)]
    assert again.download_bytes == 0
    assert again.notes == (
        (
            "the layers stay where they are cached; split anew, the slowest stage would take "
            "540 ms a token"
        ),
    )
    # A host that is twice as fast is worth a download.
    faster = [filled[0], replace(filled[1], read_gbps=20.0)]
    assert [stage.layers for stage in planned(faster, costs).stages] == [(0, 4), (4, 12)]


def test_tight_and_slow_stages_and_full_disks_are_warned_of() -> None:
    slots = [
        slot(0, 2 * GIB + 100 * MIB, 100.0),
        slot(1, 30 * GIB, 1.0, disk_free_bytes=int(5.1 * GIB)),
        slot(2, 3 * GIB, 100.0),
    ]
    assert planned(slots, flat_costs(10)).notes == (
        f"hosts.txt:1 (host1) is tight: 100 MiB of 2.09 GiB {TIGHT}",
        f"hosts.txt:3 (host3) is tight: 0 MiB of 3.00 GiB {TIGHT}",
        (
            "hosts.txt:2 (host2) holds the others up: 5371 ms a token, 1809 ms in the mean; more "
            "memory on faster hosts would help"
        ),
        "the disk of hosts.txt:2 (host2) will be nearly full: 5.00 GiB to fetch, 5.09 GiB free",
    )


def test_a_speed_that_is_not_known_is_said_and_gives_no_forecast() -> None:
    placement = planned([slot(0, 9 * GIB, 10.0), slot(1, 9 * GIB, 0.0)], flat_costs(4))
    assert (placement.bottleneck_ms, placement.tokens_per_s) == (None, None)
    assert "the speed of hosts.txt:2 (host2) is not known; it counts as the slowest host's" in (
        placement.notes
    )


def test_the_plan_as_json_has_stable_names_with_units() -> None:
    placement = planned([*hosts(9, 9), slot(2, MIB)], flat_costs(3, 500 * MIB, kv_bytes=MIB))
    stage = {
        "stage": 0,
        "name": "hosts.txt:1",
        "host": "host1",
        "device": "cpu",
        "quantization": "bfloat16",
        "layers": [0, 1],
        "weights_bytes": 500 * MIB,
        "kv_bytes": MIB,
        "scratch_bytes": 0,
        "process_bytes": 0,
        "need_bytes": 501 * MIB,
        "free_bytes": 9 * GIB,
        "download_bytes": 500 * MIB,
        "step_ms": 52.8288,
        "tight": False,
    }
    reason = "a single layer needs 501 MiB there and it has 1 MiB"
    assert placement.to_json() == {
        "num_layers": 3,
        "stages": [
            stage,
            {
                **stage,
                "stage": 1,
                "name": "hosts.txt:2",
                "host": "host2",
                "layers": [1, 3],
                "weights_bytes": 1000 * MIB,
                "kv_bytes": 2 * MIB,
                "need_bytes": 1002 * MIB,
                "download_bytes": 1000 * MIB,
                "step_ms": 105.6576,
            },
        ],
        "left_out": [{"name": "hosts.txt:3", "host": "host3", "reason": reason}],
        "notes": [
            f"hosts.txt:3 (host3) left out: {reason}",
        ],
        "bottleneck_ms": 105.6576,
        "tokens_per_s": pytest.approx(1000 / 157.2864),
        "download_bytes": 1500 * MIB,
    }


def test_stages_that_share_a_device_are_said_to_take_turns() -> None:
    out = io.StringIO()
    together = [slot(index, 9 * GIB, machine="m") for index in range(2)]
    show_placement(planned(together, flat_costs(8, 500 * MIB)), PlainScreen(out))
    words = "whose stages on one device take turns (ms/token is while all of them read at once)"
    assert out.getvalue().splitlines()[3].endswith(f" tokens/s for one request, {words}")


def test_the_plan_as_a_table() -> None:
    slots = [slot(0, 9 * GIB), slot(1, 20 * GIB, device="cuda:0", quantization="int8")]
    placement = planned(slots, flat_costs(8, 500 * MIB, kv_bytes=20 * MIB, parts=(1.0, 0.5)))
    out = io.StringIO()
    show_placement(placement, PlainScreen(out))
    table = """\
  #  host               layers   weights       KV  scratch      need       free  download  ms/token
  0  host1                 0:2  1000 MiB   40 MiB    0 MiB  1.02 GiB   9.00 GiB  1000 MiB       106
  1  host2 cuda:0 int8     2:8  1.47 GiB  120 MiB    0 MiB  1.59 GiB  20.00 GiB  2.93 GiB       157
8 layers on 2 stages, 3.91 GiB to fetch, at most about 3.81 tokens/s for one request
"""
    assert out.getvalue() == table
