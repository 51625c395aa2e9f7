"""Tensors are kept by layer, whatever the split."""

from __future__ import annotations

import pytest

from worker.weights.group import group_of, layer_of


@pytest.mark.parametrize(
    ("name", "group", "layer"),
    [
        ("model.layers.12.mlp.experts.3.up_proj.weight", "model.layers.12", 12),
        ("transformer.h.0.ln_1.weight", "transformer.h.0", 0),
        ("h.7.attn.bias", "h.7", 7),
        ("model.embed_tokens.weight", "model.embed_tokens.weight", None),
        ("lm_head.weight", "lm_head.weight", None),
        ("blocks2.w1.weight", "blocks2.w1.weight", None),
        ("5", "5", 5),
    ],
)
def test_a_group_is_the_name_up_to_its_first_number(
    name: str, group: str, layer: int | None
) -> None:
    assert (group_of(name), layer_of(group)) == (group, layer)
