"""Leave out layers that are like others, so that a run on the meta device takes a few layers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from transformers import DynamicCache

from worker.model.ghost import Ghost
from worker.model.plan import StagePlan
from worker.model.slicing import cache_entries


@dataclass(frozen=True, slots=True)
class ThinPlan:
    """A plan whose model has ghosts in the place of layers that are like one before them.

    Attributes:
        twins: for each layer that was left out, the layer that it is like.
        entry_twins: the same for the entries of the cache.
    """

    plan: StagePlan
    twins: Mapping[int, int]
    entry_twins: Mapping[int, int]


@contextmanager
def thinned(plan: StagePlan) -> Iterator[ThinPlan]:
    """Thin `plan.model` as long as the block lasts; its ends stay, and one more of each kind.

    Layers are alike when modules, shapes, plain attributes, what the config lists for them and
    their cache entries are; then they take the same memory and use their weights alike.
    """
    stage, parts = plan.sliced.stage, plan.sliced.parts
    container = plan.model.get_submodule(parts.layers)
    layers = dict(enumerate(container.children()))
    entries = {i: sorted(cache_entries(layer)) for i, layer in layers.items()}
    if not any(entries.values()):
        entries = {i: [i] for i in layers}
    twins: dict[int, int] = {}
    first_of: dict[Hashable, int] = {}
    # beside the input of any other layer than the first, the embeddings are alive
    for i in range(stage.shard_start + 1, stage.shard_end - 1):
        like = first_of.setdefault(_kind(plan, layers[i], i, entries[i]), i)
        if like != i:
            twins[i] = like
    left_out = {entry for i in twins for entry in entries[i]}
    kept = tuple(entry for entry in plan.sliced.cache_layers if entry not in left_out)
    entry_twins = {
        entry: other
        for i, like in twins.items()
        for entry, other in zip(entries[i], entries[like], strict=True)
    }
    names = [name for name, _ in container.named_children()]
    last = _LastOutput()
    own = range(stage.shard_start, stage.shard_end)
    handles = [layers[i].register_forward_hook(last.note) for i in own if i not in twins]
    try:
        for i in twins:
            container.set_submodule(names[i], _Echo(layers[i], last))
        sliced = replace(plan.sliced, cache_layers=kept)
        yield ThinPlan(replace(plan, sliced=sliced), twins, entry_twins)
    finally:
        for handle in handles:
            handle.remove()
        for i in twins:
            container.set_submodule(names[i], layers[i])


class _LastOutput:
    """What the last layer that ran gave; it is the input of the next one, and lives anyway."""

    def __init__(self) -> None:
        self.value: Any = None

    def note(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self.value = output


class _Echo(Ghost):
    """Gives what the layer before it gave, in its form."""

    def __init__(self, original: nn.Module, last: _LastOutput) -> None:
        super().__init__(original)
        object.__setattr__(self, "_last", last)

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return it."""
        return self._last.value


def _kind(plan: StagePlan, layer: nn.Module, index: int, entries: list[int]) -> Hashable:
    config = plan.architecture.text_config
    num_layers = plan.sliced.stage.num_layers
    listed = tuple(
        (name, repr(value[index]))
        for name, value in sorted(vars(config).items())
        if isinstance(value, (list, tuple)) and len(value) == num_layers
    )
    modules = tuple(
        (
            name,
            type(module).__qualname__,
            _plain_attributes(module),
            tuple(
                (key, tuple(p.shape), p.dtype)
                for key, p in module._parameters.items()
                if p is not None
            ),
        )
        for name, module in layer.named_modules()
    )
    return listed, modules, _entry_kinds(plan, entries)


def _entry_kinds(plan: StagePlan, entries: list[int]) -> Hashable:
    layers = DynamicCache(config=plan.model.config).layers
    return tuple(
        (type(layers[entry]).__qualname__, _plain_attributes(layers[entry]))
        for entry in entries
        if entry < len(layers)
    )


def _plain_attributes(thing: Any) -> Hashable:
    """What tells two things of one class apart, but for the place where each is."""
    return tuple(
        (name, value)
        for name, value in sorted(vars(thing).items())
        if isinstance(value, (bool, int, float, str, type(None))) and name != "layer_idx"
    )
