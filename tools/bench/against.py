"""Stageline against plain transformers, and llama.cpp over RPC, in one run and in turn.

    python -m tools.bench.against --model-id FOLDER [--local N] [--threads N] [--rounds N]
        [--llama-server FILE --rpc-server FILE --gguf FILE]

All get the same prompt ids, generate as many tokens, and have as many threads in all: transformers
in one process with all of them, the others with an even share for each of N processes. Every way
has answered once before it is measured. A ratio is that of the medians. transformers and Stageline
are compared token by token; llama.cpp computes in another order and may differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from orchestrator.benchmark.stream import run_streams
from orchestrator.benchmark.workload import Workload
from orchestrator.bundle.records import NoRecorder
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from tools.bench.rounds import spread

if TYPE_CHECKING:
    from tools.bench.plain import Timed

STAGELINE, PLAIN, LLAMA = "stageline", "transformers", "llama.cpp RPC"


@dataclass(frozen=True, slots=True)
class Question:
    """What every way is asked."""

    folder: Path
    stages: int
    threads: int
    prompt_tokens: int
    new_tokens: int
    prefill_chunk: int = 256


def specs_of(question: Question) -> list[StageSpec]:
    """Return the stages, with an even share of the threads for each."""
    share = max(1, question.threads // question.stages)
    options = WorkerOptions(model_id=str(question.folder), threads=share)
    environment = {"OMP_NUM_THREADS": str(share), "OMP_WAIT_POLICY": "passive"}
    return [
        StageSpec(stage=stage, num_stages=question.stages, environment=environment, options=options)
        for stage in range(question.stages)
    ]


async def measured(
    question: Question, rounds: int, more: dict[str, Callable[[list[int]], Timed]]
) -> dict[str, list[Timed]]:
    """Ask every way once a round, backwards in odd ones, after each has answered once."""
    from tools.bench.plain import PlainModel, Timed

    plain = PlainModel(question.folder, question.threads)
    async with await Stages.start(specs_of(question)) as pipeline:
        workload = await Workload.fitted(
            pipeline,
            prompt_tokens=question.prompt_tokens,
            new_tokens=question.new_tokens,
            prefill_chunk=question.prefill_chunk,
        )
        request = workload.request(0)
        assert request.prompt is not None
        ids = plain.encode(request.prompt)

        async def split() -> Timed:
            (stream,) = await run_streams(pipeline, [request], NoRecorder())
            prefill = stream.prompt_tokens * 1e3 / stream.ttft_ms
            return Timed(stream.token_ids, prefill, stream.decode_tokens_per_s)

        async def whole() -> Timed:
            return await asyncio.to_thread(
                plain.answer, ids, question.new_tokens, question.prefill_chunk
            )

        ways: dict[str, Callable[[], Awaitable[Timed]]] = {STAGELINE: split, PLAIN: whole}
        for name, ask in more.items():
            ways[name] = partial(asyncio.to_thread, ask, ids)
        found: dict[str, list[Timed]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name in list(ways) if number % 2 else reversed(list(ways)):
                answer = await ways[name]()
                if number:
                    found[name].append(answer)
        return found


def report(found: dict[str, list[Timed]]) -> str:
    """Format the table; the ratios are Stageline's medians by the others'."""
    lines = [f"{'':14} {'prefill tok/s':>26} {'decode tok/s':>26}"]
    for name, answers in found.items():
        prefill = spread([a.prefill_tokens_per_s for a in answers], 1)
        decode = spread([a.decode_tokens_per_s for a in answers], 1)
        lines.append(f"{name:14} {prefill:>26} {decode:>26}")
    for name in found:
        if name != STAGELINE:
            prefill_ratio, decode_ratio = ratios(found, name)
            lines.append(
                f"stageline by {name}: prefill {prefill_ratio:.2f}, decode {decode_ratio:.2f}"
            )
    lines.append(f"the same tokens as transformers: {'yes' if is_same(found) else 'NO'}")
    return "\n".join(lines)


def ratios(found: dict[str, list[Timed]], other: str) -> tuple[float, float]:
    """Return Stageline's speed by that of another way: prefill, decode."""

    def of(name: str) -> tuple[float, float]:
        answers = found[name]
        return (
            median(a.prefill_tokens_per_s for a in answers),
            median(a.decode_tokens_per_s for a in answers),
        )

    mine, theirs = of(STAGELINE), of(other)
    return mine[0] / theirs[0], mine[1] / theirs[1]


def is_same(found: dict[str, list[Timed]]) -> bool:
    """Tell whether every answer of Stageline's and of transformers' has the same tokens."""
    return len({answer.token_ids for name in (STAGELINE, PLAIN) for answer in found[name]}) == 1


def as_json(found: dict[str, list[Timed]]) -> dict[str, Any]:
    """Return all that was measured."""
    return {
        "ways": {
            name: {
                "prefill_tokens_per_s": [a.prefill_tokens_per_s for a in answers],
                "decode_tokens_per_s": [a.decode_tokens_per_s for a in answers],
            }
            for name, answers in found.items()
        },
        "ratios": {
            name: dict(zip(("prefill", "decode"), ratios(found, name), strict=True))
            for name in found
            if name != STAGELINE
        },
        "same_tokens": is_same(found),
    }


def main(argv: list[str] | None = None) -> int:
    """Print the table; the exit code is 1 where tokens differ from those of transformers."""
    options = _options(argv)
    question = Question(
        options.model_id, options.local, options.threads, options.prompt_tokens, options.new_tokens
    )
    # before torch is imported: threads that spin would slow the stages beside them
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with ExitStack() as held:
        more: dict[str, Callable[[list[int]], Timed]] = {}
        if options.llama_server:
            from tools.bench.llama_rpc import LlamaFiles, serving

            files = LlamaFiles(options.llama_server, options.rpc_server, options.gguf)
            context = 2 * (question.prompt_tokens + question.new_tokens)
            llama = held.enter_context(serving(files, question.stages, question.threads, context))
            more[LLAMA] = lambda ids: llama.answer(ids, question.new_tokens)
        found = asyncio.run(measured(question, options.rounds, more))
    print(json.dumps(as_json(found), indent=2) if options.json else report(found))
    return 0 if is_same(found) else 1


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model-id", type=Path, required=True, help="a folder")
    parser.add_argument("--local", type=int, default=2, help="stages (2)")
    parser.add_argument("--threads", type=int, default=2, help="of each way, in all (2)")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    for flag in ("--llama-server", "--rpc-server", "--gguf"):
        parser.add_argument(flag, type=Path)
    options = parser.parse_args(argv)
    given = [bool(x) for x in (options.llama_server, options.rpc_server, options.gguf)]
    if any(given) and not all(given):
        parser.error("give --llama-server, --rpc-server and --gguf together")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
