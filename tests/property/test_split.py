"""Even splits cover every layer exactly once."""

from __future__ import annotations

from itertools import pairwise

from worker.protocol.stage import Role, split_layers


def test_every_split_of_up_to_200_layers_is_a_partition() -> None:
    for num_layers in range(1, 201):
        for num_stages in range(1, num_layers + 1):
            slices = split_layers(num_layers, num_stages)
            sizes = [s.num_own_layers for s in slices]
            joined = [(a.shard_end, b.shard_start) for a, b in pairwise(slices)]
            assert slices[0].shard_start == 0 and slices[-1].shard_end == num_layers
            assert all(end == start for end, start in joined)
            assert (len(slices), sum(sizes)) == (num_stages, num_layers)
            assert max(sizes) - min(sizes) <= 1


def test_roles_of_a_split() -> None:
    roles = [[set(s.roles) for s in split_layers(5, n)] for n in (1, 2, 3)]
    first, middle, last = {Role.FIRST}, {Role.MIDDLE}, {Role.LAST}
    assert roles == [[first | last | {Role.WHOLE}], [first, last], [first, middle, last]]
