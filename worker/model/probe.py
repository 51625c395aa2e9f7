"""Find out by trying whether a model type can be split, and what its stages need.

The config is shrunk to six tiny layers with random weights, and the logits of the split model
are compared with those of the whole: a second or two, no weights read.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from worker.model import internals
from worker.model.architecture import Architecture
from worker.model.cuts import legal_cuts
from worker.model.layout import hidden_layout
from worker.model.load_options import LoadOptions
from worker.model.loaded import LoadedStage
from worker.model.parts import ModelParts
from worker.model.run import StageRunner, accepted_names
from worker.model.shrink import shrunk
from worker.model.slicing import slice_model
from worker.model.support import Mode, Support
from worker.protocol.stage import StageSlice

_PROMPT_TOKENS = 11
_STEPS = 4
_MAX_PARAMETERS = 50_000_000
_MODES = (Mode.PLAIN, Mode.TOKENS, Mode.FLOAT32, Mode.TOKENS_FLOAT32)


def probe(architecture: Architecture) -> Support:
    """Shrink the model, split it in every legal way that matters, and compare the logits.

    The modes are tried from the cheapest on; the first that gives the bits of the whole wins.
    """
    model_type = str(architecture.config.model_type)
    reason = "no shrunken copy of it could be built"
    with _own_random_numbers():
        for config, model_class in _tiny_forms(architecture):
            try:
                model = random_model(config, model_class)
                whole = _whole_logits(model, _prompt(model))
            except Exception as error:  # noqa: BLE001 - these sizes do not fit together
                reason = f"no shrunken copy of it could be run ({_first_line(error)})"
                continue
            if any(torch.isnan(logits).any() for logits in whole):
                reason = "its shrunken copy gives NaN"
                continue
            return _best_mode(model_type, model)
    return Support(model_type, Mode.REFUSED, reason, source="probe")


def _best_mode(model_type: str, model: PreTrainedModel) -> Support:
    reasons = []
    for mode in _MODES:
        difference = split_difference(model, mode)
        if difference is None:
            return Support(model_type, mode, source="probe")
        reasons.append(difference)
    return Support(model_type, Mode.REFUSED, reasons[0], source="probe")


def split_difference(model: PreTrainedModel, mode: Mode) -> str | None:
    """Split whole `model` in 2, 3 and all layers; None when all give its bits, else why not."""
    parts = ModelParts.of(model)
    count = parts.num_layers
    ids = _prompt(model)
    wanted = _whole_logits(model, ids)
    cuts = legal_cuts(model.config, count)
    if not cuts:
        return "no two of its layers can be parted"
    ways = {tuple(cuts), (cuts[len(cuts) // 2],), tuple(sorted({cuts[0], cuts[-1]}))}
    for way in sorted(ways, key=len):
        try:
            found = _split_logits(model, (0, *way, count), mode, ids)
        except Exception as error:  # noqa: BLE001 - as above
            return f"its split form fails ({_first_line(error)})"
        if not all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True)):
            return "its split form gives other logits than the whole"
    return None


def random_model(config: PretrainedConfig, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    """Build `config` with random bfloat16 weights, large enough to make layers matter.

    Raises:
        ValueError: the model would not be tiny.
    """
    with torch.device("meta"):
        count = sum(p.numel() for p in model_class(copy.deepcopy(config)).parameters())
    if count > _MAX_PARAMETERS:
        raise ValueError(f"it has {count} parameters, the limit for trying is {_MAX_PARAMETERS}")
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() >= 2:
                parameter.copy_(noise * 0.12)
            else:
                # a scale that starts at zero would hide what it scales
                parameter.add_(noise * 0.1)
    nn.Module.to(model, torch.bfloat16)
    model.eval()
    return model


def _tiny_forms(
    architecture: Architecture,
) -> Iterator[tuple[PretrainedConfig, type[PreTrainedModel]]]:
    """Configs and classes to try: of a composite model, those of its text decoder."""
    text, model_class = architecture.text_config, architecture.model_class
    if text is not architecture.config:
        if not internals.has_causal_lm_class(text):
            return
        model_class = internals.causal_lm_class(text)
    for config in shrunk(text):
        yield config, model_class


def _prompt(model: PreTrainedModel) -> torch.Tensor:
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, vocab_size, (1, _PROMPT_TOKENS), generator=generator)


@torch.inference_mode()
def _whole_logits(model: PreTrainedModel, ids: torch.Tensor) -> list[torch.Tensor]:
    cache = DynamicCache(config=model.config)
    takes = accepted_names(model)
    last = {"logits_to_keep": 1} if takes is None or "logits_to_keep" in takes else {}
    x, logits = ids, []
    for _ in range(_STEPS):
        out = model(input_ids=x, cache=cache, use_cache=True, **last)
        logits.append(out.logits[:, -1])
        x = logits[-1].argmax(-1, keepdim=True)
    return logits


def _split_logits(
    model: PreTrainedModel, bounds: Sequence[int], mode: Mode, ids: torch.Tensor
) -> list[torch.Tensor]:
    count = bounds[-1]
    stages = [
        StageRunner(_stage_of(model, StageSlice(a, b, count), mode))
        for a, b in itertools.pairwise(bounds)
    ]
    caches = [stage.new_cache() for stage in stages]
    x = ids
    logits: list[torch.Tensor] = []
    for _ in range(_STEPS):
        hidden = x
        for stage, cache in zip(stages, caches, strict=True):
            hidden = stage.forward(
                hidden,
                cache,
                tokens=x if stage.needs_tokens else None,
                want="logits" if stage.stage.is_last else "hidden",
            )
        if not logits:
            disturb(stages)
        logits.append(hidden)
        x = hidden.argmax(-1, keepdim=True)
    return logits


def disturb(stages: Sequence[StageRunner]) -> None:
    """Run another request through the stages, which must not change what a request begun gives.

    A model that keeps its state in its modules in place of the cache mixes the two up.
    """
    hidden = tokens = torch.tensor([[5, 3, 4]])
    for stage in stages:
        ids = tokens if stage.needs_tokens else None
        hidden = stage.forward(hidden, stage.new_cache(), tokens=ids)


def _stage_of(whole: PreTrainedModel, stage: StageSlice, mode: Mode) -> LoadedStage:
    """Cut a stage out of a copy of a whole model in memory."""
    model = copy.deepcopy(whole)
    layout = hidden_layout(model, ModelParts.of(model))
    sliced = slice_model(model, stage, needs_tokens=mode.needs_tokens)
    return LoadedStage(
        model=model,
        architecture=Architecture(model.config, type(whole)),
        sliced=sliced,
        layout=layout,
        support=Support(str(model.config.model_type), mode, source="probe"),
        options=LoadOptions(),
        read_bytes=0,
        weight_bytes=0,
    )


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """Use fixed random numbers, and leave the process's own sequence untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
