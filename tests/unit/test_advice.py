"""What would make a model fit: every way that is proposed has been tried."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.bundle.screen import PlainScreen
from orchestrator.layer_plan import PlanError
from orchestrator.placement import DoesNotFit, Slot, place
from orchestrator.placement.table import show_misfit
from tests.support.plan_costs import NOTHING, flat_costs, with_roles
from tools.plan_shapes import GIB, slot
from worker.protocol.costs import ModelCosts
from worker.protocol.exits import ExitCode


def refused(slots: Sequence[Slot], costs: ModelCosts, max_context: int = 8192) -> DoesNotFit:
    with pytest.raises(DoesNotFit) as caught:
        place(slots, costs, max_context=max_context)
    return caught.value


def test_the_sentence_names_need_and_have_of_each_host_and_what_would_fit() -> None:
    misfit = refused([slot(0, 4 * GIB), slot(1, 3 * GIB)], flat_costs(8))
    assert str(misfit) == (
        "the model does not fit: only the first 7 of its 8 layers find room (host1 has 4.00 GiB, "
        "0:4 need 4.00 GiB; host2 has 3.00 GiB, 4:7 need 3.00 GiB); it would fit with 1.00 GiB "
        "more on host1, or with one more host of 1.00 GiB free at the end of the hosts file"
    )
    assert misfit.exit_code == ExitCode.OUT_OF_MEMORY
    assert misfit.to_json()["hosts"][1] == {
        "name": "hosts.txt:2",
        "host": "host2",
        "layers": (4, 7),
        "need_bytes": 3 * GIB,
        "free_bytes": 3 * GIB,
        "download_bytes": 3 * GIB,
        "disk_bytes": 1 << 60,
    }


def test_quantizations_that_fit_are_proposed_and_others_are_not() -> None:
    slots = [slot(0, 4 * GIB), slot(1, 4 * GIB)]
    parts = (1.0, 0.5, 0.25)
    assert refused(slots, flat_costs(16, parts=parts)).remedies[0] == "quantization int8 or nf4"
    assert refused(slots, flat_costs(32, parts=parts)).remedies[0] == "quantization nf4"
    mixed = [slots[0], replace(slots[1], quantization="int8")]
    assert refused(mixed, flat_costs(32, parts=parts)).remedies[0] == (
        "quantization nf4 on every host"
    )


def test_the_longest_context_that_fits_is_proposed() -> None:
    # Of 10 GiB, 8 are weights and 2 are left for what takes 4 at 8192 positions.
    costs = flat_costs(8, kv_bytes=GIB // 2)
    cure = "a context of about 4096 positions instead of 8192"
    assert cure in refused([slot(0, 10 * GIB)], costs).remedies


def test_the_host_that_needs_least_more_is_proposed() -> None:
    # Layers must be parted in fours: the second host lacks 1 GiB for its four, the first 2.
    slots = [slot(0, 2 * GIB), slot(1, 3 * GIB), slot(2, 4 * GIB)]
    costs = replace(flat_costs(8), cuts=(4,))
    assert "1.00 GiB more on host2" in refused(slots, costs).remedies


def test_one_more_host_holds_the_head_where_only_that_finds_no_room() -> None:
    head = replace(NOTHING, weights_bytes=3 * GIB)
    costs = with_roles(flat_costs(8), last=head, whole=head)
    cures = refused([slot(0, 8 * GIB)], costs).remedies
    assert cures == (
        "3.00 GiB more on host1",
        "one more host of 4.00 GiB free at the end of the hosts file",
    )


def test_two_more_hosts_are_proposed_where_one_cannot_do() -> None:
    # Both gaps between the ranges need a host, and the only free slot is too small for either.
    slots = [slot(0, 99 * GIB, layers=(2, 4)), slot(1, GIB // 2), slot(2, GIB // 2)]
    cures = refused(slots, flat_costs(6)).remedies
    assert cures[:1] == ("no layers= in the hosts file",)
    assert cures[-1] == "two more hosts of 2.00 GiB free each at the end of the hosts file"


def test_a_disk_that_is_too_small_is_named() -> None:
    slots = [slot(0, 99 * GIB, disk_free_bytes=3 * GIB), slot(1, 4 * GIB)]
    misfit = refused(slots, flat_costs(8))
    assert "host1 has 99.00 GiB, 0:3 need 3.00 GiB" in str(misfit)
    assert "1.00 GiB more on the disk of host1" in misfit.remedies
    alone = refused([slot(0, 99 * GIB, disk_free_bytes=GIB // 2)], flat_costs(1))
    assert "host1 has 512 MiB of disk, its first layer would fetch 1.00 GiB" in str(alone)


def test_disks_are_proposed_that_are_enough_together() -> None:
    # Each of the two would be enough with the other's disk ample.
    slots = [slot(n, 8 * GIB, disk_free_bytes=3 * GIB) for n in range(2)]
    cure = refused(slots, flat_costs(8)).remedies[0]
    assert cure == "2.00 GiB more on the disk of host2"
    larger = [slots[0], replace(slots[1], disk_free_bytes=5 * GIB)]
    assert len(place(larger, flat_costs(8), max_context=8192).stages) == 2
    both = [slot(n, 4 * GIB, disk_free_bytes=3 * GIB) for n in range(2)]
    assert refused(both, flat_costs(8)).remedies[0] == (
        "1.00 GiB more on the disk of host1 and 1.00 GiB more on the disk of host2"
    )


def test_slots_of_one_machine_need_more_than_the_least_disk_of_them() -> None:
    slots = [slot(n, 8 * GIB, machine="m", disk_free_bytes=(3 + n) * GIB) for n in range(2)]
    cure = refused(slots, flat_costs(4)).remedies[0]
    assert cure == "1.00 GiB more on the disk of host1"


def test_ranges_that_do_not_fit_are_named() -> None:
    slots = [slot(0, 4 * GIB, layers=(0, 6)), slot(1, 9 * GIB)]
    misfit = refused(slots, flat_costs(8))
    assert str(misfit).startswith(
        "the layers= of hosts.txt:1 do not fit (host1 has 4.00 GiB, 0:6 would need 6.00 GiB; "
        "host2 has 9.00 GiB, 6:8 need 2.00 GiB); it would fit with no layers= in the hosts file"
    )


def test_an_even_split_that_does_not_fit_is_not_called_a_wish() -> None:
    slots = [
        slot(0, 3 * GIB, layers=(0, 4), is_even=True),
        slot(1, 9 * GIB, layers=(4, 8), is_even=True),
    ]
    misfit = refused(slots, flat_costs(8))
    assert str(misfit).startswith(
        "the model does not fit in even shares (host1 has 3.00 GiB, 0:4 would need 4.00 GiB; "
        "host2 has 9.00 GiB, 4:8 need 4.00 GiB); it would fit with uneven layers= in a hosts file"
    )
    out = io.StringIO()
    show_misfit(misfit, PlainScreen(out))
    assert ["not 0:4" in line for line in out.getvalue().splitlines()] == [False, True, False]


@pytest.mark.parametrize(
    ("free_gib", "limit_gib", "cure"),
    [
        (2, 9, "2.00 GiB more on host1"),
        (9, 3, "memory= larger by 2.00 GiB on host1"),
        (2, 3, "2.00 GiB more on host1 and memory= larger by as much"),
    ],
)
def test_more_memory_says_whether_it_is_the_host_or_its_limit(
    free_gib: int, limit_gib: int, cure: str
) -> None:
    only = slot(0, free_gib * GIB, memory_limit_bytes=limit_gib * GIB, resident_bytes=GIB)
    assert cure in refused([only], flat_costs(4)).remedies


def test_a_limit_is_named_by_its_line_where_two_lines_are_one_host() -> None:
    limited = slot(0, 9 * GIB, host="local", memory_limit_bytes=2 * GIB, resident_bytes=GIB)
    other = replace(limited, name="hosts.txt:2", memory_limit_bytes=None, layers=(2, 3))
    slots = [replace(limited, layers=(0, 2)), other]
    assert "memory= larger by 1.00 GiB on hosts.txt:1" in refused(slots, flat_costs(3)).remedies


def test_hopeless_hosts_are_told_to_be_more() -> None:
    slots = [slot(n, 0, layers=(n, n + 1)) for n in range(3)]
    misfit = refused(slots, flat_costs(3))
    assert misfit.remedies == ()
    assert str(misfit).endswith(
        "no quantization, context or single host would make it fit: add hosts"
    )


def test_a_quantization_that_cannot_be_loaded_is_refused_with_the_reason() -> None:
    with pytest.raises(PlanError) as caught:
        place([slot(0, GIB, quantization="int8")], flat_costs(2), max_context=8192)
    assert str(caught.value) == (
        "hosts.txt:1: quantization=int8 cannot be used (bitsandbytes is not installed); use one "
        "of bfloat16"
    )


def test_no_host_at_all_is_refused() -> None:
    with pytest.raises(PlanError, match="there is no host for a stage"):
        place([], flat_costs(2), max_context=8192)
