"""Read a checkpoint's config and refuse what cannot be served, before any weight is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from worker.model import internals
from worker.model.errors import UnsupportedModel

_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


@dataclass(frozen=True)
class Architecture:
    """A model's config and the class that runs it."""

    config: PretrainedConfig
    model_class: type[PreTrainedModel]
    is_remote: bool = False

    @property
    def text_config(self) -> PretrainedConfig:
        """The config of the text decoder; of a plain model, its config."""
        return self.config.get_text_config(decoder=True)

    @property
    def num_layers(self) -> int:
        """How many layers the config names."""
        return int(self.text_config.num_hidden_layers)

    @property
    def max_context(self) -> int | None:
        """The most positions the model was made for; None where it names no limit."""
        for name in _CONTEXT_NAMES:
            value = getattr(self.text_config, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    @staticmethod
    def read(folder: Path, *, trust_remote_code: bool = False) -> Architecture:
        """Read `config.json` in `folder`.

        Raises:
            UnsupportedModel: the file is missing or broken, the type is unknown, is an
                encoder-decoder, has no language-model head, or needs code of its own.
        """
        fields = _config_fields(folder)
        model_type = fields.get("model_type")
        native = isinstance(model_type, str) and model_type in internals.known_config_types()
        auto_map = fields.get("auto_map")
        remote = auto_map.get("AutoModelForCausalLM") if isinstance(auto_map, dict) else None
        if not native and remote and not trust_remote_code:
            raise UnsupportedModel(
                f"model type {model_type!r} needs Python code from the model's own folder "
                f"({remote}); read that code, then pass --trust-remote-code to run it"
            )
        if not native and not remote:
            raise UnsupportedModel(
                f"model type {model_type!r} in {folder / 'config.json'} is unknown to the "
                "installed transformers; choose a supported model (docs/architectures.md)"
            )
        try:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        except Exception as error:  # config classes raise anything on values they dislike
            raise UnsupportedModel(
                f"{folder / 'config.json'} is not a valid {model_type} config "
                f"({_one_line(error)}); fetch the model again"
            ) from error
        model_class = _model_class(config, folder, remote, trust_remote_code)
        config = internals.config_for(model_class, config)
        return Architecture(config, model_class, bool(remote and trust_remote_code))


def _config_fields(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UnsupportedModel(
            f"{path} is missing, so {folder} is not a model folder; check the path"
        ) from error
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{path} cannot be read ({error}); fetch it again") from error
    if not isinstance(fields, dict):
        raise UnsupportedModel(f"{path} is not a JSON object; fetch it again")
    return fields


def _model_class(
    config: PretrainedConfig, folder: Path, remote: str | None, trust_remote_code: bool
) -> type[PreTrainedModel]:
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(
            f"model type {config.model_type!r} is an encoder-decoder, and only decoder-only "
            "language models can be split; choose another model"
        )
    if remote and trust_remote_code:
        found: type[PreTrainedModel] = get_class_from_dynamic_module(remote, str(folder))
        return found
    if not internals.has_causal_lm_class(config):
        raise UnsupportedModel(
            f"model type {config.model_type!r} has no causal language model in transformers; "
            "choose a text-generating model (docs/architectures.md)"
        )
    return internals.causal_lm_class(config)


def check_quantization(config: PretrainedConfig, quantization: str) -> None:
    """Refuse to quantize a checkpoint that is stored quantized already.

    Raises:
        UnsupportedModel: both config.json and the option name a quantization.
    """
    stored = internals.declared_quantization(config)
    if stored is not None and quantization != "bfloat16":
        raise UnsupportedModel(
            f"the checkpoint is already quantized ({stored}), so it cannot be loaded as "
            f"{quantization}; leave --quantization out, or use the unquantized model"
        )


def _one_line(error: Exception) -> str:
    # the validation errors of configs have their reason in the second line
    return " ".join(str(error).split())[:200] or type(error).__name__
