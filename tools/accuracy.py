"""Compare every quantization with bfloat16 on a fixed text: what is lost, and what a step takes.

    python -m tools.accuracy [FOLDER] [--rounds N] [--threads N]

`KL` is the mean divergence of the next token's distribution from that of bfloat16, `top1` how
often both hold the same token the likeliest, `perplexity` that of the text, all by the kernels that
decode steps have. `step ms` is one such step of the whole model, the median of rounds that take the
kinds in turn, with the least and the most; with one thread it is time of the processor, which
leaves out what a busy machine lets a thread wait. Without a folder it is the demo model, twice: its
weights come from a 4-bit file with groups of 32, so that kinds with just such groups keep them
nearly as they are. What they do to weights as training leaves them is seen with the same model
moved off that grid, by noise as wide as one of its levels. Prints a Markdown table for each.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from tools.bench.rounds import in_turn, spread
from tools.demo_model import default_dir, demo_model
from worker.model.architecture import Architecture
from worker.model.engine import engaged
from worker.model.load import load_stage
from worker.model.load_options import LoadOptions
from worker.model.quantized_cost import QUANTIZATIONS
from worker.model.run import StageRunner
from worker.protocol.stage import StageSlice

TEXT = Path(__file__).with_name("accuracy_text.txt")
_GRID, _LEVELS = 32, 15
_STEP_POSITIONS = 64
_ROWS = 16


@dataclass(frozen=True)
class Loss:
    """What a kind loses against bfloat16."""

    kl: float
    top1: float
    perplexity: float


def whole_model(folder: Path, kind: str) -> StageRunner:
    """Load the model in `folder` as one stage."""
    layers = Architecture.read(folder).num_layers
    options = LoadOptions(quantization=kind)  # type: ignore[arg-type]
    return engaged(load_stage(folder, StageSlice(0, layers, layers), options))


def log_probabilities(runner: StageRunner, ids: torch.Tensor) -> torch.Tensor:
    """Return those of the token after each of `ids`, float32 `[seq, vocab]`.

    A few rows at a time, by the kernels that decode steps have: those of prompts are others.
    """
    cache = runner.new_cache(max_length=ids.shape[1])
    parts = [runner.forward(few, cache, want="row_logits") for few in ids.split(_ROWS, 1)]
    return torch.cat(parts).float().log_softmax(-1)


def loss(found: torch.Tensor, wanted: torch.Tensor, ids: torch.Tensor) -> Loss:
    """Compare log probabilities `[seq, vocab]` with those of bfloat16."""
    surprise = -found[:-1].gather(1, ids[0, 1:, None]).mean()
    return Loss(
        kl=float((wanted.exp() * (wanted - found)).sum(-1).mean()),
        top1=float((wanted.argmax(-1) == found.argmax(-1)).float().mean()),
        perplexity=float(surprise.exp()),
    )


def step_ms(runner: StageRunner, ids: torch.Tensor) -> float:
    """Return the median milliseconds of a decode step after a prompt, without its first ones."""
    now_s = thread_time if torch.get_num_threads() == 1 else perf_counter
    cache = runner.new_cache(max_length=2 * _STEP_POSITIONS)
    runner.forward(ids[:, :_STEP_POSITIONS], cache, want="logits")
    took_ms = []
    for i in range(12):
        began_s = now_s()
        runner.forward(ids[:, i : i + 1], cache, want="logits")
        took_ms.append((now_s() - began_s) * 1e3)
    return sorted(took_ms[4:])[4]


def off_the_grid(folder: Path, into: Path) -> Path:
    """Copy the demo model, its layers with noise as wide as one level of its 4-bit file."""
    generator = torch.Generator().manual_seed(0)
    shutil.copytree(folder, into, ignore=shutil.ignore_patterns("*.safetensors"))
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for name, weight in tensors.items():
            if name.endswith("_proj.weight"):
                groups = weight.float().view(len(weight), -1, _GRID)
                width = (groups.amax(-1, True) - groups.amin(-1, True)) / _LEVELS
                noise = torch.rand(groups.shape, generator=generator) - 0.5
                tensors[name] = (groups + noise * width).view(weight.shape).to(weight.dtype)
        save_file(tensors, into / path.name, metadata={"format": "pt"})
    return into


def table(folder: Path, rounds: int) -> None:
    """Measure the model in `folder` at every quantization and print what was found."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer(TEXT.read_text(encoding="utf-8")).input_ids])
    runners = {kind: whole_model(folder, kind) for kind in QUANTIZATIONS}
    wanted = log_probabilities(runners["bfloat16"], ids)
    losses = {k: loss(log_probabilities(r, ids), wanted, ids) for k, r in runners.items()}
    ways = {kind: lambda runner=runner: step_ms(runner, ids) for kind, runner in runners.items()}
    took_ms = in_turn(ways, rounds)
    print(f"{ids.shape[1]} tokens, {rounds} rounds, {torch.get_num_threads()} threads\n")
    print("| quantization | weights MB | KL | top-1 | perplexity | step ms |")
    print("|---|---|---|---|---|---|")
    for kind, lost in losses.items():
        size_mb = runners[kind].loaded.weight_bytes / 1e6
        print(
            f"| `{kind}` | {size_mb:.0f} | {lost.kl:.4f} | {lost.top1:.1%} | "
            f"{lost.perplexity:.2f} | {spread(took_ms[kind], 1)} |"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(options.threads)
    if options.folder is not None:
        table(options.folder, options.rounds)
        return
    folder = demo_model(default_dir())
    print("As it is: ", end="")
    table(folder, options.rounds)
    with tempfile.TemporaryDirectory(prefix="stageline-accuracy-") as temporary:
        moved = off_the_grid(folder, Path(temporary) / "moved")
        print("\nMoved off the grid of its 4-bit file: ", end="")
        table(moved, options.rounds)


if __name__ == "__main__":
    main()
