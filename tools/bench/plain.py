"""Plain transformers in this process: the same ids in, greedy tokens out, with times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils.logging import disable_progress_bar

from orchestrator.benchmark.stream import StreamSample


class PlainModel:
    """The whole model, loaded as a user would."""

    def __init__(self, folder: Path, threads: int) -> None:
        disable_progress_bar()
        self._threads = threads
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def encode(self, prompt: str) -> list[int]:
        """Return the ids of a plain prompt."""
        return list(self._tokenizer(prompt).input_ids)

    @torch.inference_mode()
    def answer(self, ids: Sequence[int], new_tokens: int, prefill_chunk: int) -> StreamSample:
        """Decode greedily, past end-of-text tokens; the prompt in chunks as a pipeline has it."""
        torch.set_num_threads(self._threads)
        cache = DynamicCache(config=self._model.config)
        begun_ms, token_ms = _now_ms(), list[float]()
        for start in range(0, len(ids), prefill_chunk):
            token = self._next(ids[start : start + prefill_chunk], cache)
        found = [token]
        token_ms.append(_now_ms())
        while len(found) < new_tokens:
            found.append(self._next(found[-1:], cache))
            token_ms.append(_now_ms())
        return StreamSample(len(ids), begun_ms, tuple(token_ms), tuple(found))

    def _next(self, ids: Sequence[int], cache: DynamicCache) -> int:
        out = self._model(
            input_ids=torch.tensor([list(ids)]), cache=cache, use_cache=True, logits_to_keep=1
        )
        return int(out.logits[0, -1].argmax())


def _now_ms() -> float:
    return perf_counter() * 1e3
