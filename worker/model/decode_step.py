"""Do a decode step without the model's Python, which takes a fifth of it in small models.

Two steps of the loaded stage, at two positions, are written down op by op; what differs between
them is the position. The same ops are then run in the same order by torch's own interpreter. A step
far on, at which the cache grows, is compared with the model's own forward, and only where every bit
agrees, of what comes out and of what is cached, is the short way taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from worker.model.kv import StageCache
from worker.model.kv_layers import GrowingLayer
from worker.model.run import StageRunner
from worker.model.tape import CannotReplay, Tape, TapeRecorder, merged
from worker.model.tape_fuse import fused, without_twins
from worker.model.tape_script import Step, compiled

Want = Literal["hidden", "logits"]
# Where the two steps are written down, and where a step is compared: there the cache grows.
_WRITTEN_AT = (9, 5)
_COMPARED_AT = 64


@dataclass(frozen=True, eq=False, repr=False)
class DecodeStep:
    """One position of one request, whose cache holds at least one."""

    want: Want
    _step: Step
    _others: list[torch.Tensor]

    def run(self, x: torch.Tensor, cache: StageCache, tokens: torch.Tensor | None) -> torch.Tensor:
        """Do what `StageRunner.forward` does with these; on an exception the cache is as it was."""
        given = [x] if tokens is None else [x, tokens]
        layers: list[Any] = [cache.layers[i] for i in cache.own_layers]
        for layer in layers:
            given += layer.stores_with_room(1)
        output = self._step(given, self._others, cache.seen)
        cache.advance(1)
        return output

    def fits(self, x: torch.Tensor, cache: object, want: str) -> bool:
        """Say whether a forward is a step of this kind."""
        is_one = x.shape[:2] == (1, 1) and want == self.want
        return is_one and isinstance(cache, StageCache) and cache.seen > 0


@torch.inference_mode()
def learn_decode_step(runner: StageRunner) -> DecodeStep:
    """Write down, compile and compare the decode step of a loaded stage; some steps of time.

    Raises:
        CannotReplay: it cannot be done for this model, or the bits would differ.
    """
    want: Want = "logits" if runner.stage.is_last and not runner.stage.is_whole else "hidden"
    trial = _Trial(runner, want)
    first, second = (trial.written_down(position) for position in _WRITTEN_AT)
    inputs = trial.inputs
    tape = without_twins(merged(first, second, inputs, _WRITTEN_AT), inputs)
    if not runner.loaded.is_mapped:
        tape = fused(tape, inputs)
    found = DecodeStep(want, compiled(tape, inputs), list(tape.outside[inputs:]))
    trial.compare(found, _COMPARED_AT)
    return found


class _Trial:
    """Steps of a stage on numbers drawn at random."""

    def __init__(self, runner: StageRunner, want: Want) -> None:
        self._runner = runner
        self._want = want
        self._generator = torch.Generator().manual_seed(0)
        self._like = runner.new_cache()
        layers = [self._like.layers[i] for i in self._like.own_layers]
        if not all(type(layer) is GrowingLayer for layer in layers):
            raise CannotReplay("layers that keep other than all keys and values")
        self._forward(*self._drawn(), self._like)
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

    def compare(self, found: DecodeStep, position: int) -> None:
        """Do a step after `position` positions both ways."""
        plain, short = self._cache(position), self._cache(position)
        for own, other in zip(_layers(plain), _layers(short), strict=True):
            other.keys.copy_(own.keys)
            other.values.copy_(own.values)
        x, tokens = self._drawn()
        wanted = [self._forward(x, tokens, plain), *_states(plain)]
        if not _same(wanted, [found.run(x, short, tokens), *_states(short)]):
            raise CannotReplay(f"other bits after {position} positions")

    def _forward(
        self, x: torch.Tensor, tokens: torch.Tensor | None, cache: StageCache
    ) -> torch.Tensor:
        return self._runner.forward(x, cache, tokens=tokens, want=self._want)

    def _drawn(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draw an input and its token id."""
        runner = self._runner
        size = int(runner.loaded.architecture.text_config.vocab_size)
        ids = torch.randint(size, (1, 1), generator=self._generator)
        rows = torch.randn(1, 1, runner.width, generator=self._generator).to(runner.wire_dtype)
        return ids if runner.stage.is_first else rows, ids if runner.needs_tokens else None

    def _cache(self, length: int) -> StageCache:
        """Make a cache of random states like those that the model writes."""
        cache = self._runner.new_cache()
        for own, like in zip(_layers(cache), _layers(self._like), strict=True):
            shapes = [(*s.shape[:-2], length, s.shape[-1]) for s in (like.keys, like.values)]
            dtype = like.keys.dtype
            own.update(*(torch.randn(s, generator=self._generator).to(dtype) for s in shapes))
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
