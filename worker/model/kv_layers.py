"""Cache layers that grow without copying and can go back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

_FIRST_CAPACITY = 64
_MARGIN = 64


@dataclass(frozen=True)
class Mark:
    """A length of a `GrowingLayer`, with copies of the rows from `floor` on."""

    length: int
    floor: int
    keys: torch.Tensor | None
    values: torch.Tensor | None


class GrowingLayer(DynamicLayer):
    """Full attention with room to grow: an append writes its rows, a crop moves a number.

    Bit-identical to the library's layer, which copies all rows at each step (at 2048
    positions a step of a 135M model took 67-75 ms instead of 79-97).
    """

    def __init__(self, max_length: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.max_length = max_length
        self.length = 0
        self._key_store: torch.Tensor | None = None
        self._value_store: torch.Tensor | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append states `[batch, heads, new, dim]`; return all, `[batch, heads, all, dim]`."""
        needed = self.length + key_states.shape[-2]
        self._key_store = self._with_room(self._key_store, key_states, needed)
        self._value_store = self._with_room(self._value_store, value_states, needed)
        self._key_store[..., self.length : needed, :] = key_states
        self._value_store[..., self.length : needed, :] = value_states
        self.is_initialized = True
        self.device = key_states.device
        self._set_length(needed)
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    @property
    def store_bytes(self) -> int:
        """Memory held, with the room to grow."""
        if self._key_store is None or self._value_store is None:
            return 0
        return self._key_store.nbytes + self._value_store.nbytes

    def stores_with_room(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where keys and values are written, with room for so many more positions.

        Some must be held already. What is written counts from `advance` on.
        """
        assert self._key_store is not None and self._value_store is not None
        needed = self.length + num_tokens
        self._key_store = self._with_room(self._key_store, self._key_store, needed)
        self._value_store = self._with_room(self._value_store, self._value_store, needed)
        return self._key_store, self._value_store

    def advance(self, num_tokens: int) -> None:
        """Count in positions that were written to the stores."""
        self._set_length(self.length + num_tokens)

    def get_seq_length(self) -> int:
        """Return how many positions are held."""
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last `-tokens_to_remove` positions."""
        self._set_length(self.length + tokens_to_remove)

    def mark(self, floor: int) -> Mark:
        """Remember the present rows; those from `floor` on may be overwritten later."""
        if floor >= self.length or self.keys is None or self.values is None:
            return Mark(self.length, self.length, None, None)
        return Mark(
            self.length,
            floor,
            self.keys[..., floor:, :].clone(),
            self.values[..., floor:, :].clone(),
        )

    def rewind(self, mark: Mark) -> None:
        """Bring back the rows of `mark`."""
        if mark.keys is not None and mark.values is not None:
            assert self._key_store is not None and self._value_store is not None
            self._key_store[..., mark.floor : mark.length, :] = mark.keys
            self._value_store[..., mark.floor : mark.length, :] = mark.values
        self._set_length(mark.length)

    def _set_length(self, length: int) -> None:
        self.length = length
        if self._key_store is None or self._value_store is None:
            return
        self.keys = self._key_store[..., :length, :]
        self.values = self._value_store[..., :length, :]

    def _with_room(
        self, store: torch.Tensor | None, new: torch.Tensor, needed: int
    ) -> torch.Tensor:
        capacity = 0 if store is None else store.shape[-2]
        if store is not None and needed <= capacity:
            return store
        wanted = max(needed, capacity + capacity // 2, _FIRST_CAPACITY)
        if self.max_length is not None:
            wanted = max(needed, min(wanted, self.max_length))
        grown = new.new_empty((*new.shape[:-2], wanted, new.shape[-1]))
        if store is not None:
            grown[..., : self.length, :] = store[..., : self.length, :]
        return grown


class RewindableSlidingLayer(DynamicSlidingWindowLayer):
    """Sliding-window attention that remembers the last op and some positions beside it.

    The library's layer forgets what leaves the window at once, and so cannot go back.
    """

    def __init__(self, sliding_window: int) -> None:
        super().__init__(sliding_window)
        # `update` then keeps everything, and shows the window alone to attention
        self.activate_past_recording()  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        """Forget what is further back than the window and its margin; called before an op."""
        if self.keys is None or self.values is None:
            return
        kept = self.sliding_window - 1 + _MARGIN
        if self.keys.shape[-2] > kept:
            self.keys = self.keys[..., -kept:, :]
            self.values = self.values[..., -kept:, :]

    def can_drop(self, num_tokens: int) -> bool:
        """Say whether enough is remembered to forget `num_tokens` positions."""
        if self.keys is None or not self.is_initialized:
            return True
        held = self.keys.shape[-2]
        return held == self.cumulative_length or held - num_tokens >= self.sliding_window - 1

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last `-tokens_to_remove` positions."""
        if tokens_to_remove == 0 or self.keys is None or self.values is None:
            return
        self.keys = self.keys[..., :tokens_to_remove, :]
        self.values = self.values[..., :tokens_to_remove, :]
        self.cumulative_length += tokens_to_remove


def copied(value: Any) -> Any:
    """Copy a layer's state: tensors are cloned, containers rebuilt, all else is shared."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [copied(inner) for inner in value]
    if isinstance(value, tuple):
        return tuple(copied(inner) for inner in value)
    return value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Give every tensor in a state as `copied` takes it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from tensors_in(inner)
