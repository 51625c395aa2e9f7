"""Draw when each stage computed: before pipelining and packing, now, and with several requests.

    python -m tools.bench.timeline FOLDER [--local N] [--prompt-tokens N] [--new-tokens N]
        [--requests N] [--rounds N] [--out FILE.html|FILE.png]

The same prompt and as many new tokens go through stages of one thread on this machine: with
`--engine stock` and the prompt in one piece, one request at a time; with the default engine and the
prompt in one piece; with the defaults, one request at a time; with the defaults, several requests
at once, whose prompts differ. Layers are split evenly, and prompts are not kept
(`--prefix-reuse off`). Both pipelines stand beside each other and are used in turn; each way has
answered once before. Everything drawn is from the op events of the bundles. Figures are medians
over the rounds, pictures those of the round of median length. The exit code is 1 where an answer
is another one among others than alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import Pipeline
from orchestrator.benchmark.workload import Workload
from orchestrator.bundle.reader import read_bundle
from orchestrator.request import GenerationRequest
from tools.bench.timeline_page import write_page
from tools.bench.timeline_take import Take, take_of
from tools.bench.timeline_text import drawn, table


@dataclass(frozen=True, slots=True)
class Question:
    """What every way is asked; `folder` is None for stub stages."""

    folder: Path | None
    stages: int
    prompt_tokens: int
    new_tokens: int
    requests: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Way:
    """How it is asked.

    Attributes:
        key: names its requests.
        engine: of the workers; also names the folder of their bundle.
        requests: at once.
        in_one_piece: whether a prompt is one step.
    """

    key: str
    name: str
    engine: str
    requests: int
    in_one_piece: bool = False


def ways_of(question: Question) -> tuple[Way, ...]:
    """Return the ways in the order in which they are drawn."""
    return (
        Way("before", "before: stock engine, prompt in one piece", "stock", 1, in_one_piece=True),
        Way("whole", "default engine, prompt in one piece", "fast", 1, in_one_piece=True),
        Way("now", "now: the defaults", "fast", 1),
        Way("many", f"now, {question.requests} requests at once", "fast", question.requests),
    )


async def ask_all(question: Question, bundles: Path) -> dict[str, set[tuple[int, ...]]]:
    """Ask every way in turn; return the answers to the prompt that all have, by the ways' keys.

    Args:
        question: what to ask.
        bundles: an empty folder; gets a folder for each engine, with its bundle.
    """
    answers: dict[str, set[tuple[int, ...]]] = {way.key: set() for way in ways_of(question)}
    async with contextlib.AsyncExitStack() as held:
        pipelines = {
            engine: await held.enter_async_context(_opened(question, engine, bundles / engine))
            for engine in dict.fromkeys(way.engine for way in ways_of(question))
        }
        workload = await Workload.fitted(
            pipelines["fast"].stages,
            prompt_tokens=question.prompt_tokens,
            new_tokens=question.new_tokens,
            prefill_chunk=pipelines["fast"].prefill_chunk,
        )
        for number in range(question.rounds + 1):  # the first one is no figure
            ways = ways_of(question)
            for way in ways if number % 2 == 0 else reversed(ways):
                chunk = 2 * question.prompt_tokens if way.in_one_piece else workload.prefill_chunk
                requests = [
                    replace(
                        workload.request(index),
                        request_id=f"{_prefix(way, number)}{index}",
                        prefill_chunk=chunk,
                    )
                    for index in range(way.requests)
                ]
                pipeline = pipelines[way.engine]
                first, *_ = await asyncio.gather(*(_ids(pipeline, one) for one in requests))
                answers[way.key].add(first)
    return answers


def _opened(
    question: Question, engine: str, bundles: Path
) -> contextlib.AbstractAsyncContextManager[Pipeline]:
    return Pipeline.open(
        None if question.folder is None else str(question.folder),
        stub=question.folder is None,
        local=question.stages,
        threads=1,
        even_split=True,
        prefix_reuse="off",
        engine=engine,
        bundle_dir=bundles,
    )


async def _ids(pipeline: Pipeline, request: GenerationRequest) -> tuple[int, ...]:
    async with contextlib.aclosing(pipeline.submit(request)) as tokens:
        return tuple([token.token_id async for token in tokens])


def _prefix(way: Way, number: int) -> str:
    return f"{way.key}-{number}-"


def takes_in(question: Question, bundles: Path) -> dict[str, list[Take]]:
    """Return the takes of each way by its name, a take for each round."""
    read = {path.parent.name: read_bundle(path) for path in bundles.glob("*/*")}
    return {
        way.name: [
            take_of(read[way.engine], _prefix(way, number))
            for number in range(1, question.rounds + 1)
        ]
        for way in ways_of(question)
    }


def same_tokens(answers: dict[str, set[tuple[int, ...]]]) -> tuple[bool, str]:
    """Tell whether company changed an answer, and how the other engine and chunks compare."""
    is_same = len(answers["now"] | answers["many"]) == 1
    before = "yes" if answers["before"] == answers["now"] else "no"
    return is_same, (
        f"the same tokens alone and among others: {'yes' if is_same else 'NO'}; "
        f"with the stock engine and another chunk: {before}"
    )


def main(argv: list[str] | None = None) -> int:
    """Print the pictures and the figures, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a model, or `stub`")
    for flag, default, text in (
        ("--local", 2, "stages"),
        ("--prompt-tokens", 1024, "of each prompt, about"),
        ("--new-tokens", 32, "of each request"),
        ("--requests", 4, "at once"),
        ("--rounds", 3, "times that everything is measured"),
    ):
        parser.add_argument(flag, type=int, default=default, help=f"{text} (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help=".html, or .png with Chromium")
    given = parser.parse_args(argv)
    question = Question(
        None if str(given.folder) == "stub" else given.folder,
        given.local,
        given.prompt_tokens,
        given.new_tokens,
        given.requests,
        given.rounds,
    )
    with tempfile.TemporaryDirectory(prefix="timeline-") as folder:
        answers = asyncio.run(ask_all(question, Path(folder)))
        found = takes_in(question, Path(folder))
    is_same, sentence = same_tokens(answers)
    words = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "-m", "tools.bench.timeline", *words])
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    told = f"{command}\n{os.cpu_count()} cores, load {load} at the end"
    print(f"{drawn(found)}\n\n{table(found)}\n\n{sentence}\n{told}")
    if given.out is not None:
        write_page(given.out, found, told)
    return 0 if is_same else 1


if __name__ == "__main__":
    raise SystemExit(main())
