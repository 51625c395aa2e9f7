"""Compare three ways of bringing a lost KV cache back: ops, one op row by row, one op in packs.

    python -m tools.bench.replay [--folder MODEL] [--tokens 214] [--threads N]

All in one process and in turn, on the whole model as the first stage of a pipeline does it:

ops       one `decode_step` for each token, through the worker's handlers
one by one  one op `as_steps` with packing turned off: what a model that cannot be packed gets
packed    one op `as_steps`

Each way starts from the same prefill of 64 tokens, and all must give the same bits. `of ops` is
the time as a share of the first row's.
"""

from __future__ import annotations

import argparse
import binascii
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from tools.bench.rounds import in_turn, spread
from tools.demo_model import default_dir, demo_model
from worker.backends.steps import each_alone
from worker.backends.transformers import open_stage
from worker.config import WorkerConfig
from worker.handlers import Handlers
from worker.model.architecture import Architecture
from worker.protocol.ops import DecodeStep, EmbedAndForward, HiddenReply
from worker.sessions import Sessions
from worker.stopwatch import Stopwatch

_PREFILL = 64


class ReplayBench:
    """One worker that holds the whole model, and the tokens to bring back."""

    def __init__(self, folder: Path, tokens: int, threads: int) -> None:
        layers = Architecture.read(folder).num_layers
        config = WorkerConfig(
            model_id=str(folder),
            shard_start=0,
            shard_end=layers,
            device="cpu",
            threads=threads,
            max_context=_PREFILL + tokens,
        )
        identity, self._backend = open_stage(config, lambda event: None)
        sessions = Sessions(self._backend.new_cache, 2, None, lambda request_id, freed: None)
        self._handlers = Handlers(identity.slice, self._backend, sessions)
        generator = torch.Generator().manual_seed(1)
        limit = self._backend.facts.vocab_size
        self._ids: list[int] = torch.randint(
            limit, (_PREFILL + tokens,), generator=generator
        ).tolist()

    def ways(self) -> dict[str, Callable[[], tuple[float, bytes]]]:
        """Name each way; each gives seconds and the hidden states."""
        return {
            "ops": lambda: self._timed(self._ops),
            "one by one": lambda: self._timed(self._one_by_one),
            "packed": lambda: self._timed(self._packed),
        }

    def _timed(self, way: Callable[[], bytes]) -> tuple[float, bytes]:
        self._call(EmbedAndForward(tokens=tuple(self._ids[:_PREFILL])))
        began_s = perf_counter()
        hidden = way()
        return perf_counter() - began_s, hidden

    def _call(self, request: EmbedAndForward | DecodeStep) -> bytes:
        reply = self._handlers.handle(request, Stopwatch())
        assert isinstance(reply, HiddenReply)
        return binascii.a2b_base64(reply.hidden_b64)

    def _ops(self) -> bytes:
        steps = enumerate(self._ids[_PREFILL:], _PREFILL)
        return b"".join(self._call(DecodeStep(token_id=t, position=at)) for at, t in steps)

    def _packed(self) -> bytes:
        return self._call(
            EmbedAndForward(tokens=tuple(self._ids[_PREFILL:]), position=_PREFILL, as_steps=True)
        )

    def _one_by_one(self) -> bytes:
        backend: Any = self._backend

        backend.forward_together = lambda parts: each_alone(backend._one_by_one, parts)
        try:
            return self._packed()
        finally:
            del backend.forward_together


def report(found: dict[str, list[tuple[float, bytes]]], tokens: int) -> str:
    """Format the table."""
    reference = median(took_s for took_s, _ in found["ops"])
    lines = [f"{'':12} {'ms a token':>24} {'of ops':>8}"]
    for name, samples in found.items():
        each_ms = [took_s * 1000 / tokens for took_s, _ in samples]
        ratio = median(took_s for took_s, _ in samples) / reference
        lines.append(f"{name:12} {spread(each_ms):>24} {ratio:8.1%}")
    same = len({hidden for samples in found.values() for _, hidden in samples}) == 1
    lines.append("all give the same bits" if same else "THE BITS DIFFER")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, help="a model; by default the demo model")
    parser.add_argument("--tokens", type=int, default=214)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    disable_progress_bar()
    folder = options.folder or demo_model(default_dir())
    bench = ReplayBench(folder, options.tokens, options.threads)
    print(
        f"{folder.name}, {options.tokens} tokens after {_PREFILL}, {options.threads} thread(s), "
        f"{options.rounds} rounds in turn, medians"
    )
    print(report(in_turn(bench.ways(), options.rounds), options.tokens))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
