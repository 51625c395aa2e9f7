"""How many layers a model has, from its config.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.layer_plan import PlanError

# A stub worker has no model; protocol.md, "Stub mode", names its number of layers.
STUB_LAYERS = 128

_FIELDS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


class ModelUnreadable(PlanError):
    """The model's config.json cannot be had or read; one sentence."""


def count_layers(model_id: str, revision: str | None) -> int:
    """Return the number of layers of a local folder or of a model on the hub.

    Raises:
        ModelUnreadable: config.json cannot be had or read.
        PlanError: it does not tell.
    """
    folder = Path(model_id).expanduser()
    path = folder / "config.json" if folder.is_dir() else _from_hub(model_id, revision)
    try:
        config = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ModelUnreadable(
            f"cannot read {path} ({error.strerror}); is it a model folder?"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ModelUnreadable(f"{path} is not JSON ({error}); fetch the model again") from None
    count = layers_of(config)
    if count is None:
        raise PlanError(
            f"{path} does not tell how many layers the model has (none of {', '.join(_FIELDS)}); "
            "leave layers= out of the hosts file"
        )
    return count


def layers_of(config: Any) -> int | None:
    """Return the number of layers that a decoded config.json names, or None."""
    if not isinstance(config, dict):
        return None
    # A model of several parts keeps its language model's figures below text_config.
    for part in (config.get("text_config"), config):
        if not isinstance(part, dict):
            continue
        for field in _FIELDS:
            value = part.get(field)
            if type(value) is int and value >= 1:
                return value
    return None


def _from_hub(model_id: str, revision: str | None) -> Path:
    # Imported here: it takes a second, and most runs do not need it.
    from huggingface_hub import hf_hub_download

    repo_id, _, named = model_id.partition("@")
    try:
        return Path(hf_hub_download(repo_id, "config.json", revision=named or revision))
    except Exception as error:  # noqa: BLE001 - the library's many errors all mean one thing here
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelUnreadable(
            f"there is no folder {Path(model_id).expanduser().absolute()}, and config.json of "
            f"{model_id!r} cannot be fetched from the hub to count its layers ({reason}); check "
            "the name and the network, or leave layers= out of the hosts file"
        ) from None
