"""Compare decoding with and without guesses, over links of different lengths, one stream at a time.

    python -m tools.bench.speculation [--folder MODEL] [--links MS,MS,…] [--way ngram|draft]
                                      [--prompts quote|edit|chat|random] [--tokens N] [--rounds N]

One stage for each link, all on this machine, each behind a carrier that holds bytes back for half
of the link's round trip, in both directions. `--links 0,0` is a pipeline without a network. Every
answer must have the token ids of plain decoding (same pipeline, no guesses), which is measured in
turn with it. `x` is plain decode time divided by the time with guesses, from the first token to
the last; the summary has the median over prompts and the ratio of the sums.

quote: code and text that the answer repeats or continues. edit: code and text that it changes as
it does so, with more or less that is new. chat: free questions. random: the prompts of quote, with
a drafter that is told to guess wrongly, so that nothing is ever right.
--draft-quantization and --draft-folder choose the draft model of `--way draft`; by default it is
the model itself, as a stand-in for one that is nearly always right, which says nothing about how
good a real draft model is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from orchestrator.bundle.records import NoRecorder
from orchestrator.generate import generate
from orchestrator.request import GenerationRequest
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.speculation.draft_model import start_draft, warm_up
from orchestrator.speculation.speculator import Speculator
from orchestrator.stages import Stages
from orchestrator.timeouts import Timeouts
from tools.bench.speculation_prompts import PROMPTS, always_wrong
from tools.demo_model import default_dir, demo_model

LINKS_MS = "30,40,50,60,70,75"
CARRIER = Path(__file__).with_name("slow_link.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


@dataclass(frozen=True)
class Answer:
    """One answer, timed."""

    ids: tuple[int, ...]
    decode_s: float
    guessed: int
    right: int


def specs_of(folder: Path, links_ms: Sequence[float], engine: str | None) -> list[StageSpec]:
    """Return a stage for each link."""
    options = WorkerOptions(model_id=str(folder), device="cpu", threads=1, **_engine(engine))
    common: dict[str, Any] = {"environment": ENVIRONMENT, "options": options}
    return [
        StageSpec(
            stage=stage,
            num_stages=len(links_ms),
            host=f"{rtt_ms:g} ms",
            transport="command",
            code="installed",
            command=(sys.executable, "-S", str(CARRIER), str(rtt_ms / 2)),
            python=sys.executable,
            **common,
        )
        if rtt_ms
        else StageSpec(stage=stage, num_stages=len(links_ms), **common)
        for stage, rtt_ms in enumerate(links_ms)
    ]


def _engine(engine: str | None) -> dict[str, Any]:
    return {} if engine is None else {"engine": engine}


async def answer(
    pipeline: Stages, prompt: str, tokens: int, raw: bool, speculator: Speculator | None
) -> Answer:
    """Generate one answer."""
    request = GenerationRequest(
        request_id=f"bench-{time.monotonic_ns()}",
        prompt=prompt if raw else None,
        messages=None if raw else ({"role": "user", "content": prompt},),
        max_new_tokens=tokens,
        ignore_eos=True,
    )
    ids, first_s, guesses = [], 0.0, None
    outputs = generate(pipeline, request, NoRecorder(), speculator)
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            first_s = first_s or time.perf_counter()
            ids.append(output.token_id)
            guesses = output.finish.guesses if output.finish else None
    took_s = time.perf_counter() - first_s
    counts = (guesses.drafted, guesses.accepted) if guesses else (0, 0)
    return Answer(tuple(ids), took_s, *counts)


@contextlib.asynccontextmanager
async def speculator_of(given: argparse.Namespace, pipeline: Stages) -> AsyncIterator[Speculator]:
    """Make what guesses."""
    if given.prompts == "random":
        yield always_wrong(pipeline)
    elif given.way == "ngram":
        yield Speculator(pipeline)
    else:
        options = WorkerOptions(
            model_id=str(given.draft_folder or given.folder),
            device="cpu",
            threads=1,
            quantization=given.draft_quantization,
        )
        spec = StageSpec(stage=0, num_stages=1, environment=ENVIRONMENT, options=options)
        async with await start_draft(spec, Timeouts()) as draft:
            await warm_up(draft)
            yield Speculator(pipeline, draft)


async def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Measure every prompt both ways in turn."""
    links_ms = [float(text) for text in given.links.split(",")]
    kind = "quote" if given.prompts == "random" else given.prompts
    rows = []
    async with (
        await Stages.start(specs_of(given.folder, links_ms, given.engine)) as pipeline,
        speculator_of(given, pipeline) as speculator,
    ):
        for index, (raw, prompt) in enumerate(PROMPTS[kind][: given.most_prompts]):
            plain: list[Answer] = []
            quick: list[Answer] = []
            for turn in range(given.rounds):
                order = ((plain, None), (quick, speculator))
                for found, guesser in order if turn % 2 == 0 else reversed(order):
                    found.append(await answer(pipeline, prompt, given.tokens, raw, guesser))
            rows.append(_row(index, plain, quick))
            print(json.dumps(rows[-1]), file=sys.stderr)
    plain_s, quick_s = (sum(row[name] for row in rows) for name in ("plain_s", "guessed_s"))
    return {
        "model": given.folder.name,
        "links_rtt_ms": links_ms,
        "way": given.way,
        "prompts": given.prompts,
        "rows": rows,
        "median_x": round(median(row["x"] for row in rows), 2),
        "x_of_sums": round(plain_s / quick_s, 2),
        "same_tokens": all(row["same_tokens"] for row in rows),
    }


def _row(index: int, plain: Sequence[Answer], quick: Sequence[Answer]) -> dict[str, Any]:
    plain_s, quick_s = (median(one.decode_s for one in found) for found in (plain, quick))
    count = len(plain[0].ids) - 1
    return {
        "prompt": index,
        "plain_s": round(plain_s, 2),
        "guessed_s": round(quick_s, 2),
        "plain_tok_s": round(count / plain_s, 2),
        "guessed_tok_s": round(count / quick_s, 2),
        "x": round(plain_s / quick_s, 2),
        "guessed": quick[-1].guessed,
        "right": quick[-1].right,
        "same_tokens": len({one.ids for one in (*plain, *quick)}) == 1,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print the result as JSON; the exit code is 1 where a token differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="a model; by default the demo model")
    parser.add_argument("--links", default=LINKS_MS, help="round trips in ms (%(default)s)")
    parser.add_argument("--way", choices=("ngram", "draft"), default="ngram")
    parser.add_argument("--prompts", choices=("quote", "edit", "chat", "random"), default="quote")
    parser.add_argument("--most-prompts", type=int, metavar="N")
    parser.add_argument("--tokens", type=int, default=96, metavar="N")
    parser.add_argument("--rounds", type=int, default=1, metavar="N")
    parser.add_argument("--engine", help="of the workers")
    parser.add_argument("--draft-folder", type=Path)
    parser.add_argument("--draft-quantization")
    given = parser.parse_args(argv)
    given.folder = given.folder or demo_model(default_dir())
    found = asyncio.run(measure(given))
    print(json.dumps(found, indent=1))
    return 0 if found["same_tokens"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
