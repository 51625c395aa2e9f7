"""Which tensors are fetched and kept together."""

from __future__ import annotations

import re

_UP_TO_NUMBER = re.compile(r"^(?:[^.]*\.)*?(\d+)(?=\.|$)")


def group_of(name: str) -> str:
    """Return the group of a checkpoint tensor: its name up to the first whole number in it.

    `model.layers.12.mlp.up_proj.weight` is in `model.layers.12`; a name without a number is a
    group of its own. A layer is thus one group whatever the split, and what one split fetched
    serves another. Nothing but that depends on it: tensors are looked up by their own names.
    """
    found = _UP_TO_NUMBER.match(name)
    return name if found is None else found.group()


def layer_of(group: str) -> int | None:
    """Return the number that ends the group's name, which is its layer; None without one."""
    last = group.rpartition(".")[2]
    return int(last) if last.isascii() and last.isdigit() else None
