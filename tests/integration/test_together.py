"""Requests that are worked on together get the bits of plain transformers decoding each alone.

Six requests at positions of their own, one to five rows each, through three stages by the ops of
the wire; the oracle decodes each alone with the whole model, step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from tests.support.chain import Stage, carried
from tests.support.tiny import reference_model, tiny_checkpoint
from tools.arch_engine import bounds_for
from worker.model.pack import PackKind
from worker.protocol.ops import (
    DecodeStep,
    EmbedAndForward,
    ForwardAndSample,
    ForwardRange,
    HiddenReply,
    Request,
)
from worker.protocol.together import join_requests, split_replies

REQUESTS = 6
PREFILLS = [4 + 3 * i for i in range(REQUESTS)]
WIDE = {"head_dim": 64, "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
EXACT, WATCHED, INEXACT = (True, False), (True, True), (False, False)
# Steps, and what is found out about packs of 16 rows of several requests: whether they are exact,
# and whether they must be watched.
ARCHITECTURES: dict[str, tuple[int, dict[str, Any], tuple[bool, bool] | None]] = {
    "llama": (24, WIDE, EXACT),
    "gemma3_text": (6, {}, WATCHED),  # Windows of 8 positions in some layers.
    "qwen2": (3, {}, WATCHED),
    "mistral": (4, {}, WATCHED),  # Windows of 8 positions.
    "mixtral": (3, {}, WATCHED),  # Experts.
    "bloom": (2, {}, INEXACT),  # Counts positions itself.
    "jamba": (2, {}, None),  # A recurrent state.
}

torch.set_num_threads(1)


@dataclass
class Stream:
    """One request: its token ids, and how many of them the stages have had."""

    ids: list[int]
    done: int = 0
    chosen: list[dict[str, Any]] = field(default_factory=list)


class Stages:
    """Stages that are asked as the orchestrator asks."""

    def __init__(self, folder: Path, bounds: Sequence[int], **config: Any) -> None:
        self.stages = [
            Stage(folder, a, b, max_context=256, threads=1, **config) for a, b in pairwise(bounds)
        ]
        self.needs_tokens = any(stage.backend.facts.needs_tokens for stage in self.stages)

    def prefill(self, rid: int, stream: Stream, length: int) -> None:
        """Run the first ids in one chunk, one request alone."""
        tokens = tuple(stream.ids[:length])
        hidden: Any = EmbedAndForward(request_id=rid, tokens=tokens)
        for stage in self.stages:
            hidden = (
                self.stages[0].call(hidden)
                if stage is self.stages[0]
                else stage.call(self._onward(stage, rid, tokens, 0, hidden))
            )
        stream.done = length

    def steps(self, streams: dict[int, Stream], counts: dict[int, int]) -> None:
        """Run the next `counts` ids of each stream together, and choose after each of them."""
        tokens = {
            rid: tuple(stream.ids[stream.done : stream.done + counts[rid]])
            for rid, stream in streams.items()
        }
        replies: dict[int, Any] = {}
        for stage in self.stages:
            requests = [
                self._first(rid, tokens[rid], stream.done)
                if stage is self.stages[0]
                else self._onward(stage, rid, tokens[rid], stream.done, replies[rid], steps=True)
                for rid, stream in streams.items()
            ]
            answers = split_replies(requests, stage.call(join_requests("group", requests)))
            replies = dict(zip(streams, answers, strict=True))
        for rid, stream in streams.items():
            stream.chosen += replies[rid].steps
            stream.done += counts[rid]

    def _first(self, rid: int, tokens: tuple[int, ...], position: int) -> Request[Any]:
        if len(tokens) == 1:
            return DecodeStep(request_id=rid, token_id=tokens[0], position=position)
        return EmbedAndForward(request_id=rid, tokens=tokens, position=position, as_steps=True)

    def _onward(
        self,
        stage: Stage,
        rid: int,
        tokens: tuple[int, ...],
        position: int,
        hidden: HiddenReply,
        *,
        steps: bool = False,
    ) -> Request[Any]:
        fields: dict[str, Any] = {
            "request_id": rid,
            "position": position,
            "tokens": tokens if self.needs_tokens else None,
            "as_steps": steps,
            **carried(hidden),
        }
        if stage is not self.stages[-1]:
            return ForwardRange(**fields)
        return ForwardAndSample(**fields, sample_steps=steps, sample=steps, top_logprobs=5)


def top_of(model: PreTrainedModel, ids: Sequence[int], prefill: int) -> list[dict[str, Any]]:
    """Decode ids step by step after a prefill; return what is chosen after each."""
    cache = DynamicCache(config=model.config)
    whole = torch.tensor([list(ids)])
    found = []
    with torch.inference_mode():
        model(input_ids=whole[:, :prefill], cache=cache, logits_to_keep=1)
        for i in range(prefill, len(ids)):
            outputs = model(input_ids=whole[:, i : i + 1], cache=cache, logits_to_keep=1)
            logits = outputs.logits[0, -1].float()
            best = logits.log_softmax(-1).topk(5)
            token = int(logits.argmax())
            found.append(
                {
                    "token_id": token,
                    "logprob": float(logits.log_softmax(-1)[token]),
                    "top_tokens": best.indices.tolist(),
                    "top_logprobs": best.values.tolist(),
                }
            )
    return found


def rows_of(step: int, i: int) -> int:
    """Return how many rows request `i` has in a step: one to five, in all mixes."""
    return 1 + (step * 3 + i * 2) % 5


def new_streams(steps: int) -> dict[int, Stream]:
    generator = torch.Generator().manual_seed(5)
    counts = [sum(rows_of(step, i) for step in range(steps)) for i in range(REQUESTS)]
    return {
        i: Stream(torch.randint(3, 150, (p + n,), generator=generator).tolist())
        for i, (p, n) in enumerate(zip(PREFILLS, counts, strict=True))
    }


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_six_requests_get_what_each_gets_alone(model_type: str, tmp_path: Path) -> None:
    steps, overrides, found = ARCHITECTURES[model_type]
    folder = tiny_checkpoint(tmp_path, model_type, **overrides)
    model = reference_model(folder)
    bounds = bounds_for(model.config, 6, 3)
    assert bounds is not None
    pipeline, streams = Stages(folder, bounds), new_streams(steps)
    for i, stream in streams.items():
        pipeline.prefill(i, stream, PREFILLS[i])
    for step in range(steps):
        pipeline.steps(streams, {i: rows_of(step, i) for i in streams})
    expected = {i: top_of(model, s.ids, PREFILLS[i]) for i, s in streams.items()}
    assert {i: stream.chosen for i, stream in streams.items()} == expected
    backend = pipeline.stages[1].backend
    verdict = backend._steps.packs.verdicts.get(PackKind(16, True, "hidden"))
    state = None if verdict is None else (verdict.is_exact, verdict.is_watched)
    assert (state, backend.facts.max_rows) == (found, 16 if found else 1)
    tapes = backend._steps.packs.tapes
    assert [tape.is_proved for tape in tapes.values()] == [True] * len(tapes)
    assert bool(tapes) == (found == EXACT)


def test_kernels_that_look_at_all_rows_at_once_are_given_one(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path, "llama", num_hidden_layers=2)
    stage = Stage(folder, 0, 1, max_context=64, threads=1, quantization="int8")
    for i in range(3):
        stage.call(EmbedAndForward(request_id=i, tokens=(5, 6, 7 + i)))
    requests = [DecodeStep(request_id=i, token_id=9, position=3) for i in range(3)]
    together = split_replies(requests, stage.call(join_requests("group", requests)))
    assert together == [stage.call(request) for request in requests]
    assert stage.backend.facts.max_rows == 1
