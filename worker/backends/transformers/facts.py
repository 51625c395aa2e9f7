"""Say what a loaded stage is and can, for the ready line."""

from __future__ import annotations

from pathlib import Path

import torch

from worker.backends.base import ModelFacts
from worker.backends.transformers.row_int8 import WIDEST, RowInt8
from worker.byte_planes import exact_codings
from worker.model.eos import eos_token_ids
from worker.model.loaded import LoadedStage
from worker.model.run import StageRunner
from worker.model.text import TextCodec
from worker.protocol.capabilities import Capability
from worker.protocol.encodings import Encoding
from worker.protocol.payload import Coding


def model_facts(
    folder: Path,
    loaded: LoadedStage,
    runner: StageRunner,
    text: TextCodec,
    *,
    commit: str | None,
    max_context: int,
    kv_budget_bytes: int | None,
) -> ModelFacts:
    """Return the facts; runs up to two positions to learn what the cache can do."""
    config = loaded.architecture.config
    return ModelFacts(
        hidden_dim=runner.width,
        hidden_dtype="float32" if runner.wire_dtype is torch.float32 else "bfloat16",
        vocab_size=int(loaded.architecture.text_config.vocab_size),
        eos_token_ids=eos_token_ids(folder, config, text.tokenizer),
        max_context=max_context,
        needs_tokens=runner.needs_tokens,
        model_type=str(config.model_type),
        commit=commit,
        quantization=loaded.options.quantization,
        device=loaded.options.device,
        capabilities=_capabilities(loaded, runner, text),
        numerics=_numerics(loaded),
        codings=_codings(runner),
        kv_budget_bytes=kv_budget_bytes,
    )


def _capabilities(loaded: LoadedStage, runner: StageRunner, text: TextCodec) -> tuple[str, ...]:
    """Name the optional parts of the protocol that this stage speaks."""
    names = [Capability.PING, Capability.AS_STEPS, Capability.TOGETHER]
    if loaded.stage.is_last:
        names += [Capability.SAMPLING, Capability.LOGPROBS, Capability.CHUNKED_PREFILL]
        names += [Capability.BIAS, Capability.SCORE_TOKENS]
    names += [Capability.SAMPLE_STEPS]
    if text.tokenizer is not None:
        names += [Capability.TOKENIZER, Capability.VOCABULARY]
    if text.has_chat_template:
        names += [Capability.CHAT_TEMPLATE]
    if text.takes_tools:
        names += [Capability.TOOLS]
    if runner.takes_mask:
        names += [Capability.PADDING]
    if _can_crop(loaded, runner):
        names += [Capability.CROP]
    return tuple(name.value for name in names)


def _codings(runner: StageRunner) -> dict[str, Coding]:
    """Return the encodings of hidden states beside bf16, which are all of bfloat16 elements."""
    if runner.wire_dtype is not torch.bfloat16:
        return {}
    by_row = {Encoding.INT8_ROW_TOP8.value: RowInt8()} if runner.width <= WIDEST else {}
    return {**exact_codings(), **by_row}


def _can_crop(loaded: LoadedStage, runner: StageRunner) -> bool:
    """See whether a cache of two ops can go back to before the first.

    One whose layers all keep every position can, and what it is needs one op to be seen. That op
    was done already where a decode step was learnt; of a stage that is the whole model the head
    alone was not, and is run once here, so that no request pays for what it does first.
    """
    cache = runner.new_cache(max_length=2)
    ids = torch.zeros(1, 1, dtype=torch.long)
    rows = torch.zeros(1, 1, runner.width, dtype=runner.wire_dtype)
    if cache.only_grows and runner.decode_step is not None:
        if loaded.stage.is_whole:
            runner.head(rows)
        return True
    for _ in range(1 if cache.only_grows else 2):
        runner.forward(
            ids if loaded.stage.is_first else rows,
            cache,
            tokens=ids if runner.needs_tokens else None,
            want="logits" if loaded.stage.is_last else "hidden",
        )
    return cache.can_crop(0)


def _numerics(loaded: LoadedStage) -> dict[str, str]:
    """Name what decides the bits of a result, beside the weights."""
    config = loaded.model.config
    quantization = loaded.options.quantization
    found = {
        "weights": str(loaded.model.dtype).removeprefix("torch."),
        "linear": "torch" if quantization == "bfloat16" else f"bitsandbytes {quantization}",
        "attention": str(config._attn_implementation),
        "torch": torch.__version__,
    }
    if loaded.options.device == "cpu":
        found["cpu"] = torch.backends.cpu.get_cpu_capability()
        found["threads"] = str(torch.get_num_threads())
    experts = getattr(config, "_experts_implementation", None)
    if experts is not None and hasattr(loaded.architecture.text_config, "num_experts_per_tok"):
        found["experts"] = str(experts)
    return found | dict(loaded.numerics)
