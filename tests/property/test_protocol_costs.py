"""Costs survive their event, and anything else is refused with one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.protocol.costs import (
    CostsUnreadable,
    GroupSize,
    ModelCosts,
    QuantizedCost,
    RoleCost,
)

SIZES = st.integers(0, 2**60)
NAMES = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
ROLE_COSTS = st.builds(
    RoleCost,
    weights_bytes=SIZES,
    read_bytes=SIZES,
    running_bytes=SIZES,
    loading_bytes=SIZES,
    process_bytes=SIZES,
)


@st.composite
def model_costs(draw: st.DrawFn) -> ModelCosts:
    """Draw costs in which every name and every length fits."""
    count = draw(st.integers(1, 4))
    by_layer = st.lists(SIZES, min_size=count, max_size=count).map(tuple)
    sizes = st.builds(GroupSize, size_bytes=SIZES, files=st.lists(NAMES, max_size=2).map(tuple))
    groups = draw(st.dictionaries(NAMES, sizes, min_size=1, max_size=5))
    names = st.lists(st.sampled_from(sorted(groups)), max_size=3).map(tuple)
    quantized = st.builds(
        QuantizedCost,
        layer_weights_bytes=by_layer,
        layer_read_bytes=by_layer,
        first=ROLE_COSTS,
        middle=ROLE_COSTS,
        last=ROLE_COSTS,
        whole=ROLE_COSTS,
    )
    return ModelCosts(
        layer_kv_bytes=draw(by_layer),
        layer_groups=draw(st.lists(names, min_size=count, max_size=count).map(tuple)),
        first_groups=draw(names),
        last_groups=draw(names),
        groups=groups,
        quantizations=draw(st.dictionaries(NAMES, quantized, max_size=2)),
        unavailable=draw(st.dictionaries(NAMES, NAMES, max_size=2)),
        cuts=draw(st.none() | st.lists(st.integers(1, count), max_size=3).map(tuple)),
    )


@settings(max_examples=60)
@given(costs=model_costs())
def test_costs_survive_json(costs: ModelCosts) -> None:
    assert ModelCosts.from_fields(json.loads(json.dumps(costs.to_fields()))) == costs


@settings(max_examples=30)
@given(costs=model_costs(), more=JSON)
def test_fields_of_later_versions_are_ignored(costs: ModelCosts, more: Any) -> None:
    assert ModelCosts.from_fields({**costs.to_fields(), "of a later version": more}) == costs


@settings(max_examples=30)
@given(costs=model_costs())
def test_costs_of_a_version_without_cuts_can_be_cut_anywhere(costs: ModelCosts) -> None:
    fields = costs.to_fields()
    del fields["cuts"]
    assert ModelCosts.from_fields(fields).cuts is None


@settings(max_examples=150)
@given(costs=model_costs(), data=st.data())
def test_a_field_of_another_form_is_refused_or_harmless(costs: ModelCosts, data: Any) -> None:
    fields = json.loads(json.dumps(costs.to_fields()))
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(JSON)
    try:
        read = ModelCosts.from_fields(fields)
    except CostsUnreadable as error:
        assert str(error).startswith("the costs of a survey")
    else:
        assert ModelCosts.from_fields(read.to_fields()) == read


@settings(max_examples=60)
@given(junk=JSON)
def test_junk_is_refused(junk: Any) -> None:
    with pytest.raises(CostsUnreadable):
        ModelCosts.from_fields(junk)


@pytest.mark.parametrize("bad", [-1, True, 1.0, "1", None])
def test_what_is_no_size_is_refused(bad: Any) -> None:
    size = RoleCost(
        weights_bytes=1, read_bytes=1, running_bytes=1, loading_bytes=1, process_bytes=1
    )
    cost = QuantizedCost(
        layer_weights_bytes=(1,),
        layer_read_bytes=(1,),
        first=size,
        middle=size,
        last=size,
        whole=size,
    )
    costs = ModelCosts(
        layer_kv_bytes=(1,),
        layer_groups=((),),
        first_groups=(),
        last_groups=(),
        groups={},
        quantizations={"bfloat16": cost},
        unavailable={},
    )
    fields = costs.to_fields()
    fields["quantizations"]["bfloat16"]["first"]["read_bytes"] = bad
    with pytest.raises(CostsUnreadable, match="no size in bytes"):
        ModelCosts.from_fields(fields)
