"""Find the layers, embeddings and head of any causal language model, by structure alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from worker.model.errors import UnsupportedModel

_LAYER_LIST_NAMES = ("layers", "h", "blocks", "layer")


@dataclass(frozen=True, slots=True)
class ModelParts:
    """Dotted names of the parts a slice is cut along, relative to the model.

    `towers` are the modules of a multi-modal model that text does not pass through.
    """

    layers: str
    embeddings: str
    head: str
    num_layers: int
    towers: tuple[str, ...] = ()

    @staticmethod
    def of(model: PreTrainedModel) -> ModelParts:
        """Find the parts of a whole model (on the meta device or not).

        Raises:
            UnsupportedModel: there is no single list of layers, or no embeddings or head.
        """
        names = {id(module): name for name, module in model.named_modules()}
        embeddings = names.get(id(model.get_input_embeddings()))
        head = names.get(id(model.get_output_embeddings()))
        layers = _layer_list_name(model)
        if not (layers and embeddings and head):
            parts = (("layer list", layers), ("input embeddings", embeddings), ("head", head))
            lacking = ", ".join(part for part, name in parts if not name)
            raise UnsupportedModel(
                f"{type(model).__name__} cannot be split: no {lacking} found in it; "
                "run it unsplit with transformers"
            )
        return ModelParts(
            layers=layers,
            embeddings=embeddings,
            head=head,
            num_layers=len(list(model.get_submodule(layers).children())),
            towers=_tower_names(model, layers, embeddings, head),
        )


def _layer_list_name(model: PreTrainedModel) -> str | None:
    """The outermost ModuleList as long as the config says, preferring the usual names."""
    wanted = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    lists = {n: m for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) > 0}
    by_length = [name for name, module in lists.items() if len(module) == wanted]
    # a model may count two cache slots, hence two config layers, for each layer module
    candidates = by_length or [name for name in lists if _leaf(name) in _LAYER_LIST_NAMES]
    usual = [name for name in candidates if _leaf(name) in _LAYER_LIST_NAMES]
    text_only = [name for name in usual or candidates if _is_in_decoder(model, name)]
    ranked = sorted(text_only or usual or candidates, key=lambda name: name.count("."))
    return ranked[0] if ranked else None


def _is_in_decoder(model: PreTrainedModel, name: str) -> bool:
    module = model.get_submodule(name)
    return any(module is inner for inner in model.get_decoder().modules())


def _tower_names(
    model: PreTrainedModel, layers: str, embeddings: str, head: str
) -> tuple[str, ...]:
    """Modules beside the text decoder of a composite model; a plain model has none."""
    if model.config.get_text_config(decoder=True) is model.config:
        return ()
    decoder = layers.rpartition(".")[0]
    kept = (decoder, embeddings, head)
    towers: list[str] = []
    parent: nn.Module = model
    path = ""
    for step in decoder.split("."):
        for child, _ in parent.named_children():
            name = f"{path}.{child}".lstrip(".")
            if not any(part == name or part.startswith(f"{name}.") for part in kept):
                towers.append(name)
        path = f"{path}.{step}".lstrip(".")
        parent = getattr(parent, step)
    return tuple(towers)


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
