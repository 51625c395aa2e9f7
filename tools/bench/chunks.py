"""What a prompt costs in chunks of several sizes, and what stages that take turns make of it.

    python -m tools.bench.chunks FOLDER [--stages 2] [--prompt-tokens 2048] [--chunks 256 512 2048]

The stages are loaded in this process, one thread each, and get the chunks one after the other;
times are those of the processor, which leave out what a busy machine lets a thread wait.
`pipelined_ms` is the time until the last stage is done when each chunk goes to a stage as soon as
that stage and the one before are done with what comes first, and the way between takes no time.
`library_ms` is the sum with the library's own attention (`worker.model.chunk_attention` tells the
difference). Sizes take turns; of each op the fastest of the rounds counts, after one round that
counts for nothing. Prints a line for each size.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from time import thread_time
from typing import Literal

import torch
from transformers.utils.logging import disable_progress_bar

from worker.model.architecture import Architecture
from worker.model.engine import engaged
from worker.model.load import load_prepared, prepare_stage
from worker.model.load_options import LoadOptions
from worker.model.run import StageRunner
from worker.protocol.stage import split_layers

# Milliseconds of each stage, chunk by chunk.
Times = list[list[float]]


def load(folder: Path, stages: int) -> list[StageRunner]:
    """Load stages as workers do."""
    pieces = split_layers(Architecture.read(folder).num_layers, stages)
    return [engaged(load_prepared(prepare_stage(folder, one, LoadOptions()))) for one in pieces]


def read(stages: Sequence[StageRunner], prompt: torch.Tensor, chunk: int) -> Times:
    """Run a prompt `[1, seq]` through the stages in chunks."""
    caches = [stage.new_cache() for stage in stages]
    times: Times = [[] for _ in stages]
    pieces = prompt.split(chunk, 1)
    for piece in pieces:
        x = piece
        for stage, cache, spent in zip(stages, caches, times, strict=True):
            wants_token = stage.stage.is_last and piece is pieces[-1]
            want: Literal["logits", "hidden"] = "logits" if wants_token else "hidden"
            tokens = piece if stage.needs_tokens else None
            began_s = thread_time()
            x = stage.forward(x, cache, tokens=tokens, want=want)
            spent.append((thread_time() - began_s) * 1e3)
    return times


def pipelined_ms(times: Times) -> float:
    """Return when the last stage is done with the last chunk."""
    done = [0.0] * len(times[0])
    for spent in times:
        free_ms = 0.0
        for i, (ready_ms, ms) in enumerate(zip(done, spent, strict=True)):
            free_ms = done[i] = max(free_ms, ready_ms) + ms
    return done[-1]


def fastest(rounds: Sequence[Times]) -> Times:
    """Return the fastest of each op."""
    return [[min(ops) for ops in zip(*stage, strict=True)] for stage in zip(*rounds, strict=True)]


def measured(
    stages: Sequence[StageRunner], prompt: torch.Tensor, chunks: Sequence[int], rounds: int
) -> dict[tuple[int, bool], Times]:
    """Return the fastest ops by size of the chunks, and whether attention was the library's."""
    own = [stage.chunks for stage in stages]
    ways = [(chunk, is_library) for chunk in chunks for is_library in (False, True)]
    found: dict[tuple[int, bool], list[Times]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for chunk, is_library in ways if number % 2 else reversed(ways):
            for stage, attention in zip(stages, own, strict=True):
                stage.chunks = None if is_library else attention
            times = read(stages, prompt, chunk)
            if number:
                found[chunk, is_library].append(times)
    return {way: fastest(times) for way, times in found.items()}


def main() -> None:
    """Measure, and print a JSON object for each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--chunks", type=int, nargs="+", default=[128, 256, 512, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(1)
    stages = load(given.folder, given.stages)
    seed = torch.Generator().manual_seed(0)
    prompt = torch.randint(5, 1000, (1, given.prompt_tokens), generator=seed)
    found = measured(stages, prompt, given.chunks, given.rounds)
    for chunk in given.chunks:
        times, library = found[chunk, False], found[chunk, True]
        sum_ms, in_turn_ms = sum(map(sum, times)), pipelined_ms(times)
        row = {
            "chunk": chunk,
            "stage_ms": [round(sum(spent)) for spent in times],
            "sum_ms": round(sum_ms),
            "library_ms": round(sum(map(sum, library))),
            "pipelined_ms": round(in_turn_ms),
            "ratio": round(sum_ms / in_turn_ms, 2),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
