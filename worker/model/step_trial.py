"""Decode steps of a loaded stage on numbers drawn at random, to write down and to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from worker.model.kv import StageCache
from worker.model.kv_layers import GrowingLayer
from worker.model.run import StageRunner
from worker.model.short_step import ShortStep
from worker.model.tape import CannotReplay, Tape, TapeRecorder

Want = Literal["hidden", "logits"]
# The positions at which the two steps are written down.
WRITTEN_AT = (9, 5)


class StepTrial:
    """Steps of a stage on numbers drawn at random.

    Args:
        runner: of the stage.
        like: keys and values of each own layer, `[batch, heads, any, dim]`, as the model writes
            them; None has one step show them.

    Raises:
        CannotReplay: its layers keep something else.
    """

    def __init__(
        self, runner: StageRunner, like: Sequence[tuple[torch.Tensor, torch.Tensor]] | None = None
    ) -> None:
        stage = runner.stage
        self.want: Want = "logits" if stage.is_last and not stage.is_whole else "hidden"
        self._runner = runner
        self._generator = torch.Generator().manual_seed(0)
        cache = runner.new_cache()
        layers = _layers(cache)
        if not all(type(layer) is GrowingLayer for layer in layers):
            raise CannotReplay("layers that keep other than all keys and values")
        if like is None:
            self._forward(*self._drawn(), cache)
            like = [(layer.keys, layer.values) for layer in layers]
        self.like = like
        self.inputs = 1 + int(runner.needs_tokens) + 2 * len(layers)

    def written_down(self, position: int) -> Tape:
        """Return the tape of a step after `position` positions."""
        cache = self._cache(position)
        x, tokens = self._drawn()
        given = [x, *([] if tokens is None else [tokens]), *_stores(cache)]
        recorder = TapeRecorder(given)
        with recorder:
            output = self._forward(x, tokens, cache)
        return recorder.tape(output)

    def inputs_at(self, position: int) -> list[torch.Tensor]:
        """Return an input, its token id where needed, and stores that hold `position` positions."""
        x, tokens = self._drawn()
        return [x, *([] if tokens is None else [tokens]), *_stores(self._cache(position))]

    def compare(self, found: ShortStep, position: int, *, steps: int = 1) -> None:
        """Do `steps` steps after `position` positions both ways.

        What the short way gave is compared at the end: no later step may have written to it.

        Raises:
            CannotReplay: a bit of an output, or of what is cached, differs.
        """
        plain, short = self._cache(position), self._cache(position)
        for own, other in zip(_layers(plain), _layers(short), strict=True):
            other.keys.copy_(own.keys)
            other.values.copy_(own.values)
        wanted, outputs = [], []
        for _ in range(steps):
            x, tokens = self._drawn()
            wanted.append(self._forward(x, tokens, plain))
            outputs.append(found.run(x, short, tokens))
        if not _same([*wanted, *_states(plain)], [*outputs, *_states(short)]):
            raise CannotReplay(f"other bits after {position} positions")

    def _forward(
        self, x: torch.Tensor, tokens: torch.Tensor | None, cache: StageCache
    ) -> torch.Tensor:
        return self._runner.forward(x, cache, tokens=tokens, want=self.want)

    def _drawn(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draw an input and its token id."""
        runner = self._runner
        size = int(runner.loaded.architecture.text_config.vocab_size)
        ids = torch.randint(size, (1, 1), generator=self._generator)
        rows = torch.randn(1, 1, runner.width, generator=self._generator).to(runner.wire_dtype)
        x, ids = (ids if runner.stage.is_first else rows).to(runner.device), ids.to(runner.device)
        return x, ids if runner.needs_tokens else None

    def _cache(self, length: int) -> StageCache:
        """Make a cache of random states like those that the model writes."""
        cache = self._runner.new_cache()
        for own, (keys, values) in zip(_layers(cache), self.like, strict=True):
            shapes = [(*s.shape[:-2], length, s.shape[-1]) for s in (keys, values)]
            own.update(*(torch.randn(s, generator=self._generator).to(keys) for s in shapes))
        cache.seen = length
        return cache


def _layers(cache: StageCache) -> list[Any]:
    return [cache.layers[i] for i in cache.own_layers]


def _states(cache: StageCache) -> list[torch.Tensor]:
    return [states for layer in _layers(cache) for states in (layer.keys, layer.values)]


def _stores(cache: StageCache) -> list[torch.Tensor]:
    return [store for layer in _layers(cache) for store in layer.stores_with_room(1)]


def _same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return all(
        a.dtype == b.dtype
        and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(left, right, strict=True)
    )
