"""Chunks behind the first have the bits of plain transformers, whichever way they attend."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from tests.support.tiny import load_stages, reference_model, same, tiny_checkpoint
from tools.bench.chunks import pipelined_ms
from worker.model.chunk_attention import ChunkAttention
from worker.model.load_options import LoadOptions
from worker.model.run import StageRunner

CHUNKS = (40, 33, 2, 21)
# One key head for several query heads, for all of them, for each; windows; queries as wide as no
# value.
KINDS = ["llama", "falcon", "gpt_neox", "gemma3_text", "deepseek_v3"]

torch.set_num_threads(1)


def chunks_of(vocab_size: int = 160) -> list[torch.Tensor]:
    """Return the ids of the chunks of one prompt, each `[1, rows]`."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, vocab_size, (1, sum(CHUNKS)), generator=generator)
    return list(ids.split(CHUNKS, 1))


@torch.inference_mode()
def plain(model: PreTrainedModel) -> list[torch.Tensor]:
    """Return the logits after each chunk with plain transformers."""
    cache = DynamicCache(config=model.config)
    return [
        model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        for ids in chunks_of()
    ]


def through(stages: list[StageRunner]) -> list[torch.Tensor]:
    """Return the same through stages."""
    caches = [stage.new_cache() for stage in stages]
    logits = []
    for ids in chunks_of():
        hidden = ids
        for stage, cache in zip(stages, caches, strict=True):
            want = "logits" if stage.stage.is_last else "hidden"
            tokens = ids if stage.needs_tokens else None
            hidden = stage.forward(hidden, cache, tokens=tokens, want=want)  # type: ignore[arg-type]
        logits.append(hidden)
    return logits


@pytest.mark.parametrize("model_type", KINDS)
def test_chunks_have_the_bits_of_plain_transformers(model_type: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", model_type)
    stages = load_stages(folder, (0, 3, 6), LoadOptions())
    wanted = plain(reference_model(folder))
    # in the first prompt each kind of heads is done both ways
    assert all(same(wanted, through(stages)) for _ in range(2))


def test_heads_that_were_seen_to_agree_are_read_as_they_lie(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama", num_attention_heads=4, num_key_value_heads=2)
    stages = load_stages(folder, (0, 3, 6), LoadOptions())
    through(stages)
    verdicts = [stage.chunks.verdicts for stage in stages if stage.chunks]
    assert verdicts == [{(4, 2, 16, torch.bfloat16): True}] * 2


def test_stock_stages_leave_attention_to_the_library(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    (stage,) = load_stages(folder, (0, 6), LoadOptions(engine="stock"))
    assert stage.chunks is None


def test_heads_that_were_seen_to_differ_are_left_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoint(tmp_path / "m", "llama")
    stages = load_stages(folder, (0, 3, 6), LoadOptions())
    wanted = plain(reference_model(folder))

    def ones(self: ChunkAttention, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.ones(mask.shape, dtype=dtype)

    monkeypatch.setattr(ChunkAttention, "_numbers", ones)
    found = through(stages)
    verdicts = [set(stage.chunks.verdicts.values()) for stage in stages if stage.chunks]
    assert (same(wanted, found), verdicts) == (True, [{False}, {False}])


def test_stages_that_take_turns_wait_for_chunks_and_for_themselves() -> None:
    # The second stage is the slower one with the first chunk, the first one with the last.
    assert pipelined_ms([[2.0, 1.0, 5.0], [3.0, 1.0, 4.0]]) == 2 + 1 + 5 + 4
