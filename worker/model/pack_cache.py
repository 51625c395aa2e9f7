"""Stand for the caches of several requests in one forward over rows of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DummyLayer

from worker.model.kv import StageCache
from worker.model.kv_ghost import ghost_layer
from worker.model.kv_layers import GrowingLayer, RewindableSlidingLayer

Apart = Callable[[], AbstractContextManager[None]]
_PACKED_LAYERS = (GrowingLayer, RewindableSlidingLayer)


@dataclass(frozen=True, eq=False)
class Member:
    """One request's rows in a pack: `count` positions that follow the `start` its cache holds."""

    cache: StageCache
    start: int
    count: int


@dataclass(frozen=True, eq=False)
class Update:
    """What a layer handed to the cache, and what each member holds with it."""

    keys: torch.Tensor
    values: torch.Tensor
    held: list[tuple[torch.Tensor, torch.Tensor]]


class PackCache(DynamicCache):
    """Gives each member its own rows; to the model it is as long as the first of them.

    The model gets back the very states that it gave: what it computes from them, beside attention,
    would be computed for rows alone. `update_of` has what attention is to read.

    Args:
        like: an empty cache of the stage, which stays empty.
    """

    def __init__(self, like: StageCache) -> None:
        super().__init__()
        self.own_layers = like.own_layers
        self.layers = [
            layer if type(layer) is DummyLayer else ghost_layer(layer, self)
            for layer in like.layers
        ]
        self._members: tuple[Member, ...] = ()
        self._sizes: list[int] = []
        self._updates: dict[int, Update] = {}
        self._apart: Apart = nullcontext

    @staticmethod
    def can_stand_for(cache: StageCache) -> bool:
        """Say whether each layer keeps the rows of a request apart by position."""
        return all(type(cache.layers[i]) in _PACKED_LAYERS for i in cache.own_layers)

    @property
    def seen(self) -> int:
        """Positions the first member holds."""
        return self._members[0].start if self._members else 0

    @contextmanager
    def holding(
        self, members: Sequence[Member], num_rows: int, apart: Apart = nullcontext
    ) -> Iterator[None]:
        """Stand for `members` in the block; rows past theirs, up to `num_rows`, are dropped.

        What is done to their caches is done within `apart`.
        """
        self._apart = apart
        self._members = tuple(members)
        self._sizes = [member.count for member in members]
        if (unused := num_rows - sum(self._sizes)) > 0:
            self._sizes.append(unused)
        try:
            yield
        finally:
            self._members = ()
            self._updates.clear()

    @contextmanager
    def appending(self, _num_tokens: int) -> Iterator[None]:
        """Count each member's rows in when the block succeeds; else change nothing."""
        with ExitStack() as stack:
            for member in self._members:
                stack.enter_context(_appending(member))
            yield

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append states `[1, heads, rows, dim]`, each member's to its own cache."""
        held = []
        with self._apart():
            rows = zip(
                self._members,
                key_states.split(self._sizes, 2),
                value_states.split(self._sizes, 2),
                strict=False,  # the last piece may be no member's
            )
            for member, keys, values in rows:
                layer: Any = member.cache.layers[layer_idx]
                held.append(layer.update(keys, values, *args, **kwargs))
        self._updates[layer_idx] = Update(key_states, value_states, held)
        return key_states, value_states

    def update_of(self, layer_idx: int) -> Update | None:
        """Return what a layer appended last, once."""
        return self._updates.pop(layer_idx, None)


@contextmanager
def _appending(member: Member) -> Iterator[None]:
    cache = member.cache
    if not cache.only_grows:
        with cache.appending(member.count):
            yield
        return
    try:
        yield
    except BaseException:
        cache.forget_from(member.start)
        raise
    cache.count_in(member.count)
