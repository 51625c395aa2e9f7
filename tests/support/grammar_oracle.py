"""Answer chats under grammars with plain transformers.

Usage: `python -m tests.support.grammar_oracle < asked.json > answers.json`. Reads `{"model",
"prefill_chunk", "questions": [{"messages", "grammar", "max_new_tokens"}]}` and writes the new token
ids of each answer. The library reads the tokens from the tokenizer itself, and transformers masks
the logits; nothing of the product is imported.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(model: Any, tokenizer: Any, table: Any, question: dict[str, Any], chunk: int) -> Any:
    """Return the new ids of one answer, decoded greedily."""
    import numpy as np
    import torch
    from llguidance import LLMatcher

    encoded = tokenizer.apply_chat_template(
        question["messages"], add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    num_prompt_tokens = encoded["input_ids"].shape[1]
    matcher = LLMatcher(table, question["grammar"])

    def mask(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # Called once for each new token, from the first one on.
        if input_ids.shape[1] > num_prompt_tokens:
            assert matcher.consume_token(int(input_ids[0, -1])), matcher.get_error()
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: scores.shape[1]].astype(bool)
        return scores.masked_fill(~torch.from_numpy(allowed), float("-inf"))

    output = model.generate(
        **encoded,
        do_sample=False,
        max_new_tokens=question["max_new_tokens"],
        prefill_chunk_size=chunk,
        logits_processor=[mask],
    )
    return output[0].tolist()[num_prompt_tokens:]


def main() -> None:
    """Read questions, write answers."""
    import torch
    from llguidance.hf import from_tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer

    asked = json.load(sys.stdin)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.bfloat16)
    tokenizer: Any = AutoTokenizer.from_pretrained(asked["model"])
    ends = model.generation_config.eos_token_id
    table = from_tokenizer(tokenizer, eos_token=ends)
    answers = [
        answer(model, tokenizer, table, question, asked["prefill_chunk"])
        for question in asked["questions"]
    ]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
