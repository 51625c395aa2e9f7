"""Compare a split model with the unsplit one through real checkpoints and wire bytes."""

from __future__ import annotations

import copy
import inspect
import itertools
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PretrainedConfig, PreTrainedModel

from tools.tiny_configs import recipe_config
from worker.model import internals
from worker.model.cuts import legal_cuts
from worker.model.engine import engaged
from worker.model.load import load_stage
from worker.model.load_options import LoadOptions
from worker.model.parts import ModelParts
from worker.model.probe import disturb, random_model
from worker.model.run import StageRunner
from worker.model.support import Mode
from worker.protocol.stage import StageSlice

PROMPT_TOKENS = 7
DECODE_STEPS = 16


@dataclass
class ArchResult:
    """What was found for one model type."""

    model_type: str
    mode: str = "unknown"
    reason: str = ""
    stages: list[int] = field(default_factory=list)
    padded: str = ""
    shards: int = 0
    cuts: str = "any"
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Batch:
    """Prompt ids `[batch, seq]`, with the mask of a left-padded batch."""

    ids: torch.Tensor
    mask: torch.Tensor | None = None

    def positions(self, step: int, length: int) -> dict[str, torch.Tensor]:
        """Mask and positions of the `length` newest tokens after `step` steps."""
        if self.mask is None:
            return {}
        batch = self.mask.shape[0]
        mask = torch.cat([self.mask, self.mask.new_ones(batch, step)], 1)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -length:]
        return {"attention_mask": mask, "position_ids": positions}


def single_prompt(vocab_size: int) -> Batch:
    """One prompt of seven random tokens."""
    generator = torch.Generator().manual_seed(3)
    return Batch(torch.randint(3, vocab_size, (1, PROMPT_TOKENS), generator=generator))


def padded_prompts(vocab_size: int) -> Batch:
    """Three prompts of 5, 9 and 2 tokens, padded on the left."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(3, vocab_size, (3, 9), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    mask[2, :7] = 0
    return Batch(ids * mask, mask)


def write_checkpoint(config: PretrainedConfig, folder: Path, *, sharded: bool = False) -> None:
    """Write a model of `config` with random bfloat16 weights, in one file or in many."""
    _save(_drawn_model(config), folder, sharded=sharded)


def _drawn_model(config: PretrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model_class = internals.causal_lm_class(config)
    # saving writes into the config
    return random_model(copy.deepcopy(internals.config_for(model_class, config)), model_class)


def _save(model: PreTrainedModel, folder: Path, *, sharded: bool) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size="60KB" if sharded else "10GB")


def reference_model(folder: Path) -> PreTrainedModel:
    """Load the whole model with plain transformers: the oracle."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.eval()
    return model


@torch.inference_mode()
def reference_logits(
    model: PreTrainedModel, batch: Batch, steps: int = DECODE_STEPS
) -> list[torch.Tensor]:
    """Greedy decoding with plain transformers: logits `[batch, vocab]` of each step."""
    parameters = inspect.signature(model.forward).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    cache = DynamicCache(config=model.config)
    x = batch.ids
    logits: list[torch.Tensor] = []
    for step in range(steps + 1):
        extra: dict[str, Any] = {**batch.positions(step, x.shape[1]), "logits_to_keep": 1}
        extra = {name: v for name, v in extra.items() if open_ended or name in parameters}
        logits.append(model(input_ids=x, cache=cache, use_cache=True, **extra).logits[:, -1])
        x = logits[-1].argmax(-1, keepdim=True)
    return logits


def split_logits(
    stages: Sequence[StageRunner], batch: Batch, steps: int = DECODE_STEPS
) -> list[torch.Tensor]:
    """The same through `stages`, with every hidden state as bytes in between."""
    caches = [stage.new_cache() for stage in stages]
    x = batch.ids
    logits: list[torch.Tensor] = []
    for step in range(steps + 1):
        positions = batch.positions(step, x.shape[1])
        hidden = x
        for stage, cache in zip(stages, caches, strict=True):
            hidden = stage.forward(
                hidden,
                cache,
                tokens=x if stage.needs_tokens else None,
                want="logits" if stage.stage.is_last else "hidden",
                **positions,
            )
            hidden = hidden if stage.stage.is_last else through_bytes(hidden)
        if not logits:
            disturb(stages)
        logits.append(hidden)
        x = hidden.argmax(-1, keepdim=True)
    return logits


def through_bytes(hidden: torch.Tensor) -> torch.Tensor:
    """Turn a hidden state into the bytes of the wire and back."""
    raw = hidden.contiguous().view(torch.uint8).numpy().tobytes()
    return torch.frombuffer(bytearray(raw), dtype=hidden.dtype).reshape(hidden.shape)


def load_stages(folder: Path, bounds: Sequence[int], options: LoadOptions) -> list[StageRunner]:
    """Load every stage between `bounds`, with the engine that users get."""
    count = bounds[-1]
    return [
        engaged(load_stage(folder, StageSlice(a, b, count), options))
        for a, b in itertools.pairwise(bounds)
    ]


def bounds_for(config: PretrainedConfig, count: int, num_stages: int) -> list[int] | None:
    """Even bounds, moved to legal cuts; None where there are too few."""
    legal = legal_cuts(config, count)
    wanted = [round(i * count / num_stages) for i in range(1, num_stages)]
    cuts: list[int] = []
    for cut in wanted:
        free = [c for c in legal if c not in cuts]
        if not free:
            return None
        cuts.append(min(free, key=lambda c: abs(c - cut)))
    return [0, *sorted(cuts), count]


def same(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Say whether all logits are equal bit for bit, none of them NaN."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@dataclass(frozen=True)
class Checkpoints:
    """The folders of one model: its weights in one file, and in many."""

    whole: Path
    sharded: Path

    @classmethod
    def written(cls, config: PretrainedConfig, folder: Path) -> Checkpoints:
        """Draw a model of `config` and write it both ways below `folder`."""
        found = cls(folder / "whole", folder / "sharded")
        model = _drawn_model(config)
        _save(model, found.whole, sharded=False)
        _save(model, found.sharded, sharded=True)
        return found

    @property
    def num_shards(self) -> int:
        """The files that the weights are spread over."""
        return len(list(self.sharded.glob("*.safetensors")))


def check_type(model_type: str, work: Path, config: PretrainedConfig | None = None) -> ArchResult:
    """Try one model type in every mode, and say which it needs or why it is refused."""
    result = ArchResult(model_type)
    started = time.perf_counter()
    folder = work / model_type
    try:
        config = config or recipe_config(model_type)
        checkpoints = Checkpoints.written(config, folder)
        model = reference_model(checkpoints.whole)
    except Exception as error:  # noqa: BLE001 - a type that cannot be built is a row like others
        result.reason = f"no tiny model of it can be built: {_first_line(error)}"
    else:
        _try_modes(result, config, model, checkpoints)
    shutil.rmtree(folder, ignore_errors=True)
    result.seconds = round(time.perf_counter() - started, 1)
    return result


def _try_modes(
    result: ArchResult, config: PretrainedConfig, model: PreTrainedModel, checkpoints: Checkpoints
) -> None:
    count = ModelParts.of(model).num_layers
    legal = legal_cuts(config, count)
    if len(legal) < count - 1:
        result.cuts = "not between layers that share a KV cache"
    vocab_size = config.get_text_config(decoder=True).vocab_size
    single, padded = single_prompt(vocab_size), padded_prompts(vocab_size)
    try:
        wanted = [(single, reference_logits(model, single))]
    except Exception as error:  # noqa: BLE001
        result.reason = f"plain transformers cannot run the tiny model: {_first_line(error)}"
        return
    if any(torch.isnan(step).any() for step in wanted[0][1]):
        result.reason = "plain transformers gives NaN for the tiny model"
        return
    try:
        wanted.append((padded, reference_logits(model, padded)))
    except Exception:  # noqa: BLE001 - then there is nothing to compare with
        result.padded = "reference fails"
    reasons = []
    for mode in (Mode.PLAIN, Mode.TOKENS, Mode.FLOAT32, Mode.TOKENS_FLOAT32):
        reason = _try_mode(
            result, _splits(config, count, checkpoints), LoadOptions(mode=mode), wanted
        )
        if reason is None:
            result.mode, result.reason = mode.value, ""
            result.shards = checkpoints.num_shards
            return
        reasons.append(reason)
    result.mode, result.reason = Mode.REFUSED.value, reasons[0]


def _splits(
    config: PretrainedConfig, count: int, checkpoints: Checkpoints
) -> list[tuple[Path, list[int]]]:
    """Bounds in 2, 3 and all layers, as far as legal; one split reads the weights of many files."""
    bounds = [bounds_for(config, count, num_stages) for num_stages in sorted({2, 3, count})]
    found = [(checkpoints.whole, one) for one in bounds if one is not None]
    if not found:
        return []
    # Where there is but one way, it is tried twice.
    return [found[0], (checkpoints.sharded, found[min(1, len(found) - 1)][1]), *found[2:]]


def _try_mode(
    result: ArchResult,
    splits: Sequence[tuple[Path, list[int]]],
    options: LoadOptions,
    wanted: Sequence[tuple[Batch, list[torch.Tensor]]],
) -> str | None:
    """None when every split gives the bits of the whole in this mode, else what went wrong."""
    if not splits:
        return "no two of its layers can be parted"
    result.stages = []
    try:
        for folder, bounds in splits:
            num_stages = len(bounds) - 1
            stages = load_stages(folder, bounds, options)
            for batch, logits in wanted:
                if batch.mask is not None and num_stages > 3:
                    continue
                if not same(logits, split_logits(stages, batch)):
                    of = "" if batch.mask is None else " for a left-padded batch"
                    return f"{num_stages} stages give other logits than the whole model{of}"
                if batch.mask is not None:
                    result.padded = "same"
            result.stages.append(num_stages)
    except Exception as error:  # noqa: BLE001 - whatever a strange model raises is the finding
        return f"its split form fails: {_first_line(error)}"
    result.stages = sorted(set(result.stages))
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
