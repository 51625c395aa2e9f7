"""Cache entries of layers that another stage holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Never, Protocol


class Seen(Protocol):
    """Something that knows how many positions it has seen."""

    @property
    def seen(self) -> int:
        """Positions."""


class _StatesSeen(Mapping[int, bool]):
    """Answers "is there a previous state?" alike for each state of a recurrent layer."""

    def __init__(self, owner: Seen) -> None:
        self._owner = owner

    def __getitem__(self, _key: int) -> bool:
        return self._owner.seen > 0

    def __iter__(self) -> Iterator[int]:
        return iter((0,))

    def __len__(self) -> int:
        return 1


def ghost_layer(layer: Any, owner: Seen) -> Any:
    """Turn cache entry `layer` into one that holds nothing and reports what `owner` has seen.

    It stays an instance of the layer's class, because masks are chosen by `isinstance`.
    """

    def refuse(*_args: Any, **_kwargs: Any) -> Never:
        raise RuntimeError("a cache entry of another stage's layer was written to")

    members: dict[str, Any] = {
        "get_seq_length": lambda _self: owner.seen,
        "update": refuse,
        "update_conv_state": refuse,
        "update_recurrent_state": refuse,
        "cumulative_length": property(lambda _self: owner.seen, lambda _self, _value: None),
        # else the library would take the subclass for the layer type from then on
        "_layer_type": None,
    }
    if hasattr(layer, "has_previous_state"):
        states = _StatesSeen(owner)
        members["has_previous_state"] = property(lambda _self: states, lambda _self, _v: None)
    ghost: Any = object.__new__(type(f"Ghost{type(layer).__name__}", (type(layer),), members))
    hidden = ("cumulative_length", "has_previous_state")
    vars(ghost).update({k: v for k, v in vars(layer).items() if k not in hidden})
    return ghost
