"""Compare how a chat's next turn is computed: held, in turns from the start, in chunks from it.

    python -m tools.bench.prefixes [--folder MODEL] [--local 2] [--threads N] [--answer-tokens 200]

A chat of several answers is had once. Its newest question is then answered again and again, in
turn, and the time to the first token is printed:

held     the stages hold all but the question
turns    they hold nothing: answers are computed as the decode steps that they were
chunks   they hold nothing, and answers are computed in chunks (`--prefix-reuse chunks`)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
from pathlib import Path
from time import perf_counter
from typing import Any

from orchestrator.bundle.records import NoRecorder
from orchestrator.generate import generate
from orchestrator.prefixes import Prefixes, Reuse
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from tools.bench.rounds import spread
from tools.demo_model import default_dir, demo_model

QUESTIONS = (
    "Tell me at length how bread is made.",
    "And how is it kept fresh?",
    "Which flour is best, and why?",
    "Thank you. What should I bake first?",
)


class Talk:
    """A chat with running stages; every answer is cut off at the same length."""

    def __init__(self, stages: Stages, answer_tokens: int) -> None:
        self.stages = stages
        self.messages: list[dict[str, str]] = []
        self._answer_tokens = answer_tokens
        self._names = itertools.count()

    async def answer(self, prefixes: Prefixes, most: int) -> tuple[str, float, int, int]:
        """Return the text, seconds to the first token, tokens of the prompt and those held."""
        request = GenerationRequest(
            request_id=f"talk-{next(self._names)}",
            messages=tuple(self.messages),
            max_new_tokens=most,
            ignore_eos=True,
        )
        begun_s, first_s, text = perf_counter(), 0.0, ""
        outputs = generate(self.stages, request, NoRecorder(), None, prefixes)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                first_s = first_s or perf_counter() - begun_s
                text += output.text
        return text, first_s, output.prompt_tokens, output.cached_tokens

    async def have(self, prefixes: Prefixes) -> None:
        """Ask all questions but the last, and then that one."""
        for question in QUESTIONS[:-1]:
            self.messages.append({"role": "user", "content": question})
            text, *_ = await self.answer(prefixes, self._answer_tokens)
            self.messages.append({"role": "assistant", "content": text})
        self.messages.append({"role": "user", "content": QUESTIONS[-1]})


async def measure(args: argparse.Namespace) -> None:
    """Print a row for each way."""
    options = WorkerOptions(model_id=str(args.folder), threads=args.threads)
    specs = [StageSpec(stage=i, num_stages=args.local, options=options) for i in range(args.local)]
    times: dict[str, list[float]] = {"held": [], "turns": [], "chunks": []}
    told: dict[str, Any] = {}
    async with await Stages.start(specs) as stages:
        for _ in range(args.rounds):
            talk = Talk(stages, args.answer_tokens)
            async with contextlib.aclosing(Prefixes(stages)) as prefixes:
                await talk.have(prefixes)
                told["held"] = await talk.answer(prefixes, 1)
            for reuse in (Reuse.TURNS, Reuse.CHUNKS):
                async with contextlib.aclosing(Prefixes(stages, reuse)) as prefixes:
                    told[reuse.value] = await talk.answer(prefixes, 1)
            for way, (_, first_s, *_) in told.items():
                times[way].append(first_s)
    for way, seconds in times.items():
        _, _, prompt_tokens, cached_tokens = told[way]
        print(
            f"{way:8} {spread(seconds)} s to the first token, "
            f"{prompt_tokens} tokens, {cached_tokens} held"
        )


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--local", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--answer-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.folder = args.folder or demo_model(default_dir())
    asyncio.run(measure(args))


if __name__ == "__main__":
    main()
