"""The layer plan: every layer on exactly one slot, wishes kept, whatever was wished."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.layer_plan import PlanError, Wish, plan_layers


def covered(slices: list[tuple[int, int]]) -> list[int]:
    return [layer for start, end in slices for layer in range(start, end)]


@st.composite
def wishes_and_layers(draw: st.DrawFn) -> tuple[list[Wish], int]:
    """Disjoint wishes in any file order, and at least as many free slots as gaps."""
    num_layers = draw(st.integers(1, 60))
    bounds = sorted(draw(st.sets(st.integers(0, num_layers), max_size=8)))
    ranges = list(zip(bounds[::2], bounds[1::2], strict=False))
    free = draw(st.integers(0, 6))
    layers: list[tuple[int, int] | None] = draw(st.permutations([*ranges, *[None] * free]))
    assume(layers)
    return [Wish(f"hosts.txt:{i + 1}", wished) for i, wished in enumerate(layers)], num_layers


@given(wishes_and_layers())
def test_every_layer_is_on_exactly_one_slot(case: tuple[list[Wish], int]) -> None:
    wishes, num_layers = case
    try:
        planned = plan_layers(wishes, num_layers)
    except PlanError as error:
        assert "are on no stage" in str(error)
        held = set(covered([w.layers for w in wishes if w.layers]))
        assert held != set(range(num_layers))
        return
    slices = [(s.shard_start, s.shard_end) for s in planned.values()]
    assert covered(slices) == list(range(num_layers))
    assert {i: planned[i] for i in planned if wishes[i].layers} == {
        i: s for i, s in planned.items() if (s.shard_start, s.shard_end) == wishes[i].layers
    }
    assert all(i in planned for i, wish in enumerate(wishes) if wish.layers)


@given(wishes_and_layers())
def test_free_slots_share_the_gaps_in_file_order(case: tuple[list[Wish], int]) -> None:
    wishes, num_layers = case
    try:
        planned = plan_layers(wishes, num_layers)
    except PlanError:
        return
    free = [i for i in planned if wishes[i].layers is None]
    assert free == sorted(free)
    left_out = [i for i in range(len(wishes)) if i not in planned]
    # A slot is left out only when every free layer has a slot of its own.
    assert not left_out or all(planned[i].num_own_layers == 1 for i in free)


@given(
    st.lists(st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5),
    st.integers(1, 9),
)
def test_any_wishes_are_planned_exactly_or_refused(
    layers: list[tuple[int, int] | None], num_layers: int
) -> None:
    wished = [pair if pair is None or pair[0] < pair[1] else None for pair in layers]
    wishes = [Wish(f"hosts.txt:{i + 1}", pair) for i, pair in enumerate(wished)]
    try:
        planned = plan_layers(wishes, num_layers)
    except PlanError:
        held = covered([pair for pair in wished if pair])
        clash = len(held) != len(set(held)) or max(held, default=0) >= num_layers
        gaps = sum(
            layer not in held and (layer == 0 or layer - 1 in held) for layer in range(num_layers)
        )
        assert clash or gaps > wished.count(None)
        return
    slices = [(s.shard_start, s.shard_end) for s in planned.values()]
    assert covered(slices) == list(range(num_layers))
