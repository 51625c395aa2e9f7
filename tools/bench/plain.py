"""Plain transformers in this process: the same ids in, greedy tokens out, with times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils.logging import disable_progress_bar


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer: its ids, and how fast prompt and answer went; None where it was not told."""

    token_ids: tuple[int, ...]
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


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
    def answer(self, ids: list[int], new_tokens: int, prefill_chunk: int) -> Timed:
        """Decode greedily, past end-of-text tokens; the prompt in chunks as a pipeline has it."""
        torch.set_num_threads(self._threads)
        cache = DynamicCache(config=self._model.config)
        began_s = perf_counter()
        for start in range(0, len(ids), prefill_chunk):
            token = self._next(ids[start : start + prefill_chunk], cache)
        found = [token]
        first_s = perf_counter()
        while len(found) < new_tokens:
            found.append(self._next(found[-1:], cache))
        end_s = perf_counter()
        return Timed(
            tuple(found), len(ids) / (first_s - began_s), (new_tokens - 1) / (end_s - first_s)
        )

    def _next(self, ids: list[int], cache: DynamicCache) -> int:
        out = self._model(
            input_ids=torch.tensor([ids]), cache=cache, use_cache=True, logits_to_keep=1
        )
        return int(out.logits[0, -1].argmax())
