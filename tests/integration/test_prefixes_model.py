"""A chat's turns over a real model are those of one session of plain transformers, bit for bit."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bundle.records import NoRecorder
from orchestrator.generate import generate
from orchestrator.prefixes import Prefixes
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.speculation.speculator import Speculator
from orchestrator.stages import Stages
from worker.protocol.ops import Sampling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

CHUNK = 8
NEW_TOKENS = 14
QUESTIONS = ("tell me something long about it", "and then?", "why", "so what is it, after all")
TEMPLATE = (
    "{% for m in messages %}{{ '<|assistant|>' if m['role'] == 'assistant' else '<|user|>' }}"
    "{{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
Scored = list[tuple[int, float]]


@dataclass(frozen=True)
class Tiny:
    """A random Llama that says letters.

    Attributes:
        silent: ids that must not be chosen, so that its text has the same ids again.
    """

    folder: Path
    tokenizer: Any
    silent: tuple[int, ...]

    def ids(self, messages: list[dict[str, str]]) -> list[int]:
        encoded = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True
        )
        return list(encoded["input_ids"])

    def said(self, tokens: list[int]) -> dict[str, str]:
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return {"role": "assistant", "content": text}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    from tests.support.tiny import tiny_checkpoint
    from tests.support.tokenizers import byte_tokenizer

    folder = tiny_checkpoint(
        tmp_path_factory.mktemp("model"), "llama", vocab_size=300, eos_token_id=1
    )
    tokenizer = byte_tokenizer(chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
    letters = tokenizer("abcdefghijklmnopqrstuvwxyz", add_special_tokens=False)["input_ids"]
    return Tiny(folder, tokenizer, tuple(sorted(set(range(300)) - {1, *letters})))


def one_session(tiny: Tiny) -> list[Scored]:
    """Return each turn's greedy tokens and log probabilities, from one cache for all turns."""
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(tiny.folder, dtype=torch.bfloat16).eval()
    cache = DynamicCache(config=model.config)
    fed: list[int] = []

    def feed(ids: list[int]) -> Any:
        fed.extend(ids)
        output = model(torch.tensor([ids]), cache=cache, use_cache=True)
        return output.logits[0, -1].float()

    messages: list[dict[str, str]] = []
    answers: list[Scored] = []
    unfed: list[int] = []
    with torch.inference_mode():
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            prompt = tiny.ids(messages)
            if unfed:
                feed(unfed)
            assert prompt[: len(fed)] == fed
            news = prompt[len(fed) :]
            for start in range(0, len(news), CHUNK):
                logits = feed(news[start : start + CHUNK])
            answer: Scored = []
            while True:
                allowed = logits.clone()
                allowed[list(tiny.silent)] = -torch.inf
                token = int(allowed.argmax())
                answer.append((token, float(logits.log_softmax(-1)[token])))
                if token == 1 or len(answer) == NEW_TOKENS:
                    break
                logits = feed([token])
            unfed = [] if token == 1 else [token]
            answers.append(answer)
            messages.append(tiny.said([token for token, _ in answer]))
    return answers


async def chat(
    tiny: Tiny, stages: Stages, prefixes: Prefixes, sampling: Sampling, *, cold: bool = False
) -> tuple[list[Scored], list[int], list[int]]:
    """Return each turn's answer, the length of its prompt, and how much of that was held."""
    messages: list[dict[str, str]] = []
    answers, lengths, cached = [], [], []
    for i, question in enumerate(QUESTIONS):
        messages.append({"role": "user", "content": question})
        request = GenerationRequest(
            request_id=f"turn {i}",
            messages=tuple(messages),
            max_new_tokens=NEW_TOKENS,
            prefill_chunk=CHUNK,
            sampling=sampling,
        )
        own = Prefixes(stages) if cold else prefixes
        speculator = Speculator(stages) if i % 2 else None
        outputs = generate(stages, request, NoRecorder(), speculator, own)
        answer: Scored = []
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                answer.append((output.token_id, output.logprob or 0.0))
        if cold:
            await own.aclose()
        answers.append(answer)
        lengths.append(output.prompt_tokens)
        cached.append(output.cached_tokens)
        messages.append(tiny.said([token for token, _ in answer]))
    return answers, lengths, cached


def test_turns_are_those_of_one_session_whether_or_not_they_are_held(tiny: Tiny) -> None:
    greedy = Sampling(logprobs=True, suppress_tokens=tiny.silent)
    drawn = Sampling(temperature=1.0, seed=3, logprobs=True, suppress_tokens=tiny.silent)

    async def run() -> list[tuple[list[Scored], list[int], list[int]]]:
        options = WorkerOptions(model_id=str(tiny.folder), threads=1)
        specs = [StageSpec(stage=i, num_stages=2, options=options) for i in range(2)]
        async with await Stages.start(specs) as stages:
            prefixes = Prefixes(stages)
            found = []
            for sampling in (greedy, drawn):
                for cold in (False, True):
                    found.append(await chat(tiny, stages, prefixes, sampling, cold=cold))
            await prefixes.aclose()
            return found

    warm, cold, drawn_warm, drawn_cold = asyncio.run(run())
    assert warm[0] == one_session(tiny)
    assert (cold[0], drawn_cold[0]) == (warm[0], drawn_warm[0])
    # All but the newest turn's own part was held; its last token had not been fed.
    held = [length + len(answer) - 1 for answer, length in zip(warm[0], warm[1], strict=True)]
    assert (warm[2], cold[2]) == ([0, *held[:-1]], [0] * 4)
