"""Stageline against plain transformers, and llama.cpp over RPC, in one run and in turn.

    python -m tools.bench.against --model-id FOLDER [--local N] [--threads N] [--rounds N]
        [--streams 1,4,16] [--quantization KIND]
        [--llama-server FILE --rpc-server FILE --gguf FILE]

All get the same prompt ids, generate as many tokens, and have as many threads in all: transformers
in one process with all of them, the others with an even share for each of N processes. Every way
has answered once before it is measured. A ratio is that of the medians. Of several requests at
once, prefill is all their prompts by the time until each has its first token, decode what comes
after that moment. transformers answers one request, and only where Stageline is not quantized: then
the tokens are compared one by one. llama.cpp computes in another order and may differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.benchmark.stream import run_streams
from orchestrator.benchmark.workload import Workload
from orchestrator.bundle.records import NoRecorder
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.stages import Stages
from tools.bench.answers import Answers
from tools.bench.comparison import LLAMA, PLAIN, STAGELINE, Comparison

if TYPE_CHECKING:
    from tools.bench.llama_rpc import LlamaRpc

Ask = Callable[[int], Awaitable[Answers]]


@dataclass(frozen=True, slots=True)
class Question:
    """What every way is asked.

    Attributes:
        threads: of each way, in all.
        streams: how many requests at once, one number after the other.
        quantization: of Stageline; None is bfloat16.
    """

    folder: Path
    stages: int
    threads: int
    prompt_tokens: int
    new_tokens: int
    streams: tuple[int, ...] = (1,)
    quantization: str | None = None
    prefill_chunk: int = 256


def specs_of(question: Question) -> list[StageSpec]:
    """Return the stages, with an even share of the threads for each."""
    share = max(1, question.threads // question.stages)
    options = WorkerOptions(
        model_id=str(question.folder), threads=share, quantization=question.quantization
    )
    environment = {"OMP_NUM_THREADS": str(share), "OMP_WAIT_POLICY": "passive"}
    return [
        StageSpec(stage=stage, num_stages=question.stages, environment=environment, options=options)
        for stage in range(question.stages)
    ]


async def measured(question: Question, rounds: int, llama: LlamaRpc | None) -> Comparison:
    """Ask every way once a round, backwards in odd ones, after each has answered once."""
    async with await Stages.start(specs_of(question)) as pipeline:
        workload = await Workload.fitted(
            pipeline,
            prompt_tokens=question.prompt_tokens,
            new_tokens=question.new_tokens,
            prefill_chunk=question.prefill_chunk,
        )
        ways = {STAGELINE: _stageline(pipeline, workload)}
        if question.quantization is None and 1 in question.streams:
            ways[PLAIN] = _plain(question, workload)
        if llama is not None:
            ways[LLAMA] = await _llama(llama, pipeline, workload, max(question.streams))
        found = Comparison.of(question.streams)
        for number in range(rounds + 1):
            for count in question.streams:
                for name in list(ways) if number % 2 else reversed(list(ways)):
                    if name == PLAIN and count > 1:
                        continue
                    answers = await ways[name](count)
                    if number:
                        found.add(count, name, answers)
        return found


def _stageline(pipeline: Stages, workload: Workload) -> Ask:
    async def ask(count: int) -> Answers:
        requests = [workload.request(number) for number in range(count)]
        return Answers(tuple(await run_streams(pipeline, requests, NoRecorder())))

    return ask


def _plain(question: Question, workload: Workload) -> Ask:
    from tools.bench.plain import PlainModel

    model = PlainModel(question.folder, question.threads)
    ids = model.encode(workload.request(0).prompt or "")

    async def ask(count: int) -> Answers:
        assert count == 1
        work = asyncio.to_thread(model.answer, ids, question.new_tokens, question.prefill_chunk)
        return Answers((await work,))

    return ask


async def _llama(llama: LlamaRpc, pipeline: Stages, workload: Workload, most: int) -> Ask:
    requests = [workload.request(number) for number in range(most)]
    prompts = [await pipeline.tokenize(one.request_id, one.prompt) for one in requests]

    async def ask(count: int) -> Answers:
        work = asyncio.to_thread(llama.answer, prompts[:count], workload.new_tokens)
        return Answers(tuple(await work))

    return ask


@contextmanager
def _llama_of(options: argparse.Namespace, question: Question) -> Iterator[LlamaRpc | None]:
    if options.llama_server is None:
        yield None
        return
    from tools.bench.llama_rpc import LlamaFiles, serving

    with serving(
        LlamaFiles(options.llama_server, options.rpc_server, options.gguf),
        stages=question.stages,
        threads=question.threads,
        context=2 * (question.prompt_tokens + question.new_tokens),
        streams=max(question.streams),
    ) as llama:
        yield llama


def main(argv: list[str] | None = None) -> int:
    """Print the table; the exit code is 1 where tokens differ that have to be the same."""
    options = _options(argv)
    question = Question(
        options.model_id,
        options.local,
        options.threads,
        options.prompt_tokens,
        options.new_tokens,
        options.streams,
        options.quantization,
    )
    # before torch is imported: threads that spin would slow the stages beside them
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # unlike a worker, a server of llama.cpp would outlive this program
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with _llama_of(options, question) as llama:
        found = asyncio.run(measured(question, options.rounds, llama))
    print(json.dumps(found.as_json(), indent=2) if options.json else found.report())
    return 0 if found.is_same else 1


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({max(1, int(part)) for part in text.split(",")}))


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model-id", type=Path, required=True, help="a folder")
    parser.add_argument("--local", type=int, default=2, help="stages (2)")
    parser.add_argument("--threads", type=int, default=2, help="of each way, in all (2)")
    parser.add_argument("--streams", type=_counts, default=(1,), help="requests at once (1)")
    parser.add_argument("--quantization", help="of Stageline (none)")
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
    if options.new_tokens < 2 or options.rounds < 1:
        parser.error("--new-tokens needs to be 2 or more, and --rounds 1 or more")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
