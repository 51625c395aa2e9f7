"""Measure what several requests cost that are worked on together, against one of them alone.

    python -m tools.bench.rows [--folder MODEL] [--positions 128] [--threads N] [--json FILE]

One worker in this process holds the whole model. Each of up to 16 requests is at a position of its
own; a step is what the orchestrator asks of a stage for one token of each: the layers, then the
head and the choice. `1 alone` are the two ops of a single request, the other rows one `together`
each. All are taken in turn, so that a busy machine slows all alike; `of one` is the median of the
ratios within a round. The first step of each number of rows, in which the kernels are tried, is
not counted, but told of.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from tools.bench.rounds import in_turn, spread
from tools.demo_model import default_dir, demo_model
from worker.backends.transformers import open_stage
from worker.config import WorkerConfig
from worker.handlers import Handlers
from worker.model.architecture import Architecture
from worker.protocol.ops import (
    DecodeStep,
    EmbedAndForward,
    ForwardAndSample,
    HiddenReply,
    Request,
    SampledReply,
)
from worker.protocol.together import join_requests, split_replies
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch

COUNTS = (1, 2, 4, 8, 16)
_ALONE = "1 alone"
# Positions between one request and the next.
_APART = 3


class RowsBench:
    """One worker that holds the whole model, and requests on their way."""

    def __init__(self, folder: Path, positions: int, steps: int, threads: int) -> None:
        layers = Architecture.read(folder).num_layers
        most = max(COUNTS)
        config = WorkerConfig(
            model_id=str(folder),
            shard_start=0,
            shard_end=layers,
            device="cpu",
            threads=threads,
            max_context=positions + most * _APART + steps,
        )
        identity, backend = open_stage(config, lambda event: None)
        sessions = Sessions(backend.new_cache, most, None, lambda request_id, freed: None)
        self.facts = backend.facts
        self._handlers = Handlers(identity.slice, backend, sessions)
        self._tokens: list[int] = []
        self._positions = [positions + i * _APART for i in range(most)]
        generator = torch.Generator().manual_seed(1)
        for i, length in enumerate(self._positions):
            ids = torch.randint(backend.facts.vocab_size, (length,), generator=generator).tolist()
            self._call(EmbedAndForward(request_id=i, tokens=tuple(ids)))
            self._tokens.append(ids[-1])

    def ways(self) -> dict[str, Callable[[], float]]:
        """Name each way; each takes a step and gives milliseconds."""
        together = {str(n): lambda n=n: self._timed(lambda: self._together(n)) for n in COUNTS}
        return {_ALONE: lambda: self._timed(self._alone), **together}

    def _timed(self, way: Callable[[], dict[int, int]]) -> float:
        began_s = perf_counter()
        chosen = way()
        took_ms = (perf_counter() - began_s) * 1000
        for i, token in chosen.items():
            self._tokens[i] = token
            self._positions[i] += 1
        return took_ms

    def _alone(self) -> dict[int, int]:
        hidden = self._call(self._decode(0))
        reply = self._call(self._sample(0, hidden))
        return {0: reply.token_id}

    def _together(self, count: int) -> dict[int, int]:
        steps = [self._decode(i) for i in range(count)]
        hidden = self._call_together(steps)
        replies = self._call_together([self._sample(i, each) for i, each in enumerate(hidden)])
        return {i: reply.token_id for i, reply in enumerate(replies)}

    def _decode(self, i: int) -> DecodeStep:
        return DecodeStep(request_id=i, token_id=self._tokens[i], position=self._positions[i])

    def _sample(self, i: int, hidden: HiddenReply) -> ForwardAndSample:
        return ForwardAndSample(
            request_id=i,
            position=self._positions[i],
            seq_len=1,
            hidden_dtype=hidden.hidden_dtype,
            hidden_b64=hidden.hidden_b64,
        )

    def _call(self, request: Request[Any]) -> Any:
        return self._handlers.handle(request, Stopwatch())

    def _call_together(self, requests: Sequence[Request[Any]]) -> list[Any]:
        replies = split_replies(requests, self._call(join_requests("group", requests)))
        wrong = [reply for reply in replies if not isinstance(reply, (HiddenReply, SampledReply))]
        assert not wrong, wrong
        return list(replies)


def table(found: dict[str, list[float]]) -> str:
    """Format the measurements."""
    lines = [f"{'requests':10} {'ms a step':>24} {'of one':>8} {'tokens/s of one':>16}"]
    for name, steps_ms in found.items():
        ratio = _of_one(found, name)
        count = 1 if name == _ALONE else int(name)
        lines.append(f"{name:10} {spread(steps_ms):>24} {ratio:8.2f} {count / ratio:16.2f}")
    return "\n".join(lines)


def _of_one(found: dict[str, list[float]], name: str) -> float:
    pairs = zip(found[name], found[_ALONE], strict=True)
    return median(step_ms / alone_ms for step_ms, alone_ms in pairs)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, help="a model; by default the demo model")
    parser.add_argument("--positions", type=int, default=128, help="of the shortest request")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="where to write every number")
    options = parser.parse_args(argv)
    disable_progress_bar()
    folder = options.folder or demo_model(default_dir())
    steps = (options.rounds + 1) * (1 + len(COUNTS))
    bench = RowsBench(folder, options.positions, steps, options.threads)
    ways = bench.ways()
    first = {name: way() for name, way in ways.items()}
    found = in_turn(ways, options.rounds)
    print(
        f"{folder.name}, {options.threads} thread(s), from position {options.positions}, "
        f"{options.rounds} rounds in turn, medians"
    )
    print(table(found))
    print("first steps, ms: " + ", ".join(f"{name} {ms:.0f}" for name, ms in first.items()))
    if options.json:
        result = {
            "model": folder.name,
            "threads": options.threads,
            "positions": options.positions,
            "numerics": dict(bench.facts.numerics),
            "first_ms": first,
            "steps_ms": found,
            "of_one": {name: _of_one(found, name) for name in found},
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
