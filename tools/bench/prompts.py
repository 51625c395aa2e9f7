"""What a prompt of one chunk costs with torch's products, and with those of the engine.

    python -m tools.bench.prompts FOLDER [--layers N] [--tokens 44 128 256] [--threads 1]

The first layers of a model folder are loaded in this process and get a prompt of each length, with
`worker.model.wide_products` and without, in turn; times are those of the clock, medians of the
rounds with the lowest and the highest. Both must give the same bits. What a first prompt of a
length costs, while the order of torch's sums is found out, is told as `first_ms`. Prints a line of
JSON for each length.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from transformers.utils.logging import disable_progress_bar

from worker.model.architecture import Architecture
from worker.model.engine import engaged
from worker.model.load import load_prepared, prepare_stage
from worker.model.load_options import LoadOptions
from worker.model.run import StageRunner
from worker.model.turned_linear import TurnedLinear
from worker.model.wide_products import WideProducts
from worker.protocol.stage import StageSlice


class Prompts:
    """A stage whose products of many rows can be torch's."""

    def __init__(self, runner: StageRunner) -> None:
        self._runner = runner
        modules = runner.loaded.model.modules()
        self._linears = [module for module in modules if isinstance(module, TurnedLinear)]
        self._wide: WideProducts | None = next((m.wide for m in self._linears if m.wide), None)

    def read(self, prompt: torch.Tensor, *, wide: bool) -> tuple[float, torch.Tensor]:
        """Run a prompt `[1, seq]`; return milliseconds and hidden states."""
        for linear in self._linears:
            linear.wide = self._wide if wide else None
        cache = self._runner.new_cache()
        tokens = prompt if self._runner.needs_tokens else None
        began_s = perf_counter()
        hidden = self._runner.forward(prompt, cache, tokens=tokens, want="hidden")
        return (perf_counter() - began_s) * 1e3, hidden


def measured(prompts: Prompts, tokens: int, rounds: int) -> dict[str, object]:
    """Return what a prompt of so many tokens takes."""
    generator = torch.Generator().manual_seed(tokens)
    prompt = torch.randint(1000, (1, tokens), generator=generator)
    _, wanted = prompts.read(prompt, wide=False)
    first_ms, found = prompts.read(prompt, wide=True)
    if not torch.equal(wanted.view(torch.int16), found.view(torch.int16)):
        raise SystemExit(f"{tokens} tokens: other bits than torch's")
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for wide, spent in times.items():
            spent.append(prompts.read(prompt, wide=wide)[0])
    ratios = [stock / ours for stock, ours in zip(times[False], times[True], strict=True)]
    return {
        "tokens": tokens,
        "torch_ms": _three(times[False]),
        "ours_ms": _three(times[True]),
        "torch_by_ours": _three(ratios),
        "first_ms": round(first_ms, 1),
    }


def _three(values: list[float]) -> list[float]:
    return [round(value, 2) for value in (median(values), min(values), max(values))]


def main() -> None:
    """Measure, and print a line for each length."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, help="how many of its layers; default: all")
    parser.add_argument("--tokens", type=int, nargs="+", default=[44, 128, 256])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(args.threads)
    num_layers = Architecture.read(args.folder).num_layers
    stage = StageSlice(0, args.layers or num_layers, num_layers)
    prepared = prepare_stage(args.folder, stage, LoadOptions())
    prompts = Prompts(engaged(load_prepared(prepared)))
    with torch.inference_mode():
        for tokens in args.tokens:
            print(json.dumps(measured(prompts, tokens, args.rounds)), flush=True)


if __name__ == "__main__":
    main()
