"""Cut a model down to the layers of one stage, before any weight is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from worker.model import internals
from worker.model.errors import UnsupportedModel
from worker.model.ghost import Ghost
from worker.model.parts import ModelParts
from worker.model.unfilled import Unfilled
from worker.protocol.stage import StageSlice


@dataclass(frozen=True, slots=True)
class SlicedParts:
    """What is known of a sliced model.

    `cache_layers` are the cache indices its own layers write to, `tied` the tied parameters of
    the whole model, `embedding_width` the width its embeddings give (some models project it).
    """

    parts: ModelParts
    stage: StageSlice
    needs_tokens: bool
    cache_layers: tuple[int, ...]
    tied: dict[str, str]
    embedding_width: int


def slice_model(model: PreTrainedModel, stage: StageSlice, *, needs_tokens: bool) -> SlicedParts:
    """Replace everything in meta model `model` that `stage` does not hold by ghosts, in place.

    Foreign layers, the embeddings on all but the first stage (kept everywhere where
    `needs_tokens`), the head on all but the last, and the towers of multi-modal models go.
    Small parts between them (final norm, learned positions, rotary tables) stay on each stage.

    Raises:
        UnsupportedModel: the model has another number of layers, or no layers to cut at.
    """
    parts = ModelParts.of(model)
    if parts.num_layers != stage.num_layers:
        raise UnsupportedModel(
            f"layers {stage} of {stage.num_layers} were asked for, but the model has "
            f"{parts.num_layers} layers; correct the slice"
        )
    tied = internals.tied_parameters(model)
    embeddings = model.get_submodule(parts.embeddings)
    cache_layers = _cut_layers(model.get_submodule(parts.layers), stage)
    if not (stage.is_first or needs_tokens):
        model.set_submodule(parts.embeddings, Ghost(embeddings))
    if not stage.is_last:
        model.set_submodule(parts.head, Ghost(model.get_submodule(parts.head)))
    for tower in parts.towers:
        model.set_submodule(tower, Ghost(model.get_submodule(tower)))
    internals.set_tied_parameters(model, _ties_within(model, tied))
    return SlicedParts(parts, stage, needs_tokens, cache_layers, tied, _width(embeddings))


def _width(embeddings: Any) -> int:
    return int(getattr(embeddings, "embedding_dim", None) or embeddings.weight.shape[1])


def _cut_layers(layers: nn.Module, stage: StageSlice) -> tuple[int, ...]:
    """Make ghosts of foreign layers; return the cache indices that own layers use."""
    own: set[int] = set()
    for i, (name, layer) in enumerate(list(layers.named_children())):
        if stage.shard_start <= i < stage.shard_end:
            own |= cache_entries(layer)
        else:
            layers.set_submodule(name, Ghost(layer))
    return tuple(sorted(own)) or tuple(range(stage.shard_start, stage.shard_end))


def cache_entries(layer: nn.Module) -> set[int]:
    """Return the cache indices that a layer's modules name as theirs; -1 means none."""
    indices = (getattr(module, "layer_idx", None) for module in layer.modules())
    return {index for index in indices if isinstance(index, int) and index >= 0}


def _ties_within(model: PreTrainedModel, tied: dict[str, str]) -> dict[str, str]:
    """The ties that remain among the parameters of a sliced model."""
    have = dict(model.named_parameters(remove_duplicate=False))
    groups: dict[str, list[str]] = {}
    for target, source in tied.items():
        groups.setdefault(source, [source]).append(target)
    remaining: dict[str, str] = {}
    for group in groups.values():
        here = [name for name in group if name in have]
        remaining |= dict.fromkeys(here[1:], here[0]) if here else {}
    return remaining


def stage_class(
    whole: type[PreTrainedModel], stage: StageSlice, *, needs_tokens: bool
) -> type[PreTrainedModel]:
    """Subclass `whole` so that `from_pretrained` builds and fills the slice alone.

    The instance keeps its `SlicedParts` as `stage_parts`. Name and module stay those of
    `whole`, because transformers looks up dtypes, renamings and ties by them.
    """

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        with Unfilled():
            whole.__init__(self, config, *args, **kwargs)
        self.stage_parts = slice_model(self, stage, needs_tokens=needs_tokens)

    members = {"__init__": __init__, "__module__": whole.__module__}
    return type(whole.__name__, (whole,), members | {"__qualname__": whole.__qualname__})


def stage_parts(model: PreTrainedModel) -> SlicedParts:
    """Return what a model built by `stage_class` knows of its slice."""
    found: Any = model.stage_parts
    assert isinstance(found, SlicedParts)
    return found
