"""Answer prompts with plain transformers: the whole model, one request at a time, one thread.

Usage: `python -m tests.support.oracle MODEL_FOLDER < questions.json > answers.json`, in a process
of its own so that it computes beside the workers. Nothing of the product is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A plain prompt, or chat messages, and how many tokens to answer."""

    prompt: str | None = None
    messages: list[dict[str, str]] | None = None
    max_new_tokens: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What transformers makes of a question.

    Attributes:
        prompt_tokens: ids of the prompt.
        tokens: the new ids, an end token included.
        text: the new ids as text, without special tokens.
    """

    prompt_tokens: list[int]
    tokens: list[int]
    text: str


class Oracle:
    """A process that answers while the workers compute; `answers` waits for it."""

    def __init__(self, model: Path, questions: Sequence[Question], prefill_chunk: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.oracle", str(model), str(prefill_chunk)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self._process.stdin
        self._process.stdin.write(json.dumps([asdict(q) for q in questions]).encode())
        self._process.stdin.close()
        self._answers: list[Answer] | None = None

    def answers(self) -> list[Answer]:
        """Return one answer per question, in order."""
        if self._answers is None:
            assert self._process.stdout
            raw = json.loads(self._process.stdout.read())
            self._answers = [Answer(**fields) for fields in raw]
            self.close()
        return self._answers

    def close(self) -> None:
        """End the process, whether it has finished or not."""
        if self._answers is None:
            self._process.kill()
        if self._process.stdout:
            self._process.stdout.close()
        self._process.wait()


def answer(model: Any, tokenizer: Any, question: Question, prefill_chunk: int) -> Answer:
    """Answer one question as any user of transformers would."""
    if question.messages is None:
        encoded = tokenizer(question.prompt, return_tensors="pt")
    else:
        encoded = tokenizer.apply_chat_template(
            question.messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    output = model.generate(
        **encoded,
        do_sample=False,
        max_new_tokens=question.max_new_tokens,
        prefill_chunk_size=prefill_chunk,
    )
    num_prompt_tokens = encoded["input_ids"].shape[1]
    ids = output[0].tolist()
    new = ids[num_prompt_tokens:]
    text = tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Answer(prompt_tokens=ids[:num_prompt_tokens], tokens=new, text=text)


def main() -> None:
    """Read questions, write answers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, prefill_chunk = sys.argv[1], int(sys.argv[2])
    questions = [Question(**fields) for fields in json.load(sys.stdin)]
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = [answer(model, tokenizer, question, prefill_chunk) for question in questions]
    json.dump([asdict(one) for one in answers], sys.stdout)


if __name__ == "__main__":
    main()
