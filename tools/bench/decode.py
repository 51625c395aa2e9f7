"""Compare decode steps of each stage with what reading its weights takes, and with stock kernels.

    python -m tools.bench.decode [--model 1.1b|llama|moe|tiny|FOLDER] [--stages N] [--threads N]

The stages of a model are loaded in this process with the engine that users get, and again with
`--engine stock`, which is plain transformers over a growing cache. Rounds go in turn, so that a
busy machine slows all alike: a prompt in one chunk, then decode steps, the stages one after the
other. `bound_ms` is the bytes of weights that a step reads over the speed at which this machine
reads memory, measured in the same rounds. `of_bound` compares the fastest step with the fastest
reading: other work on the machine only ever adds time. With one thread, times are those of the
processor, which leave out what a busy machine lets a thread wait. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from tools.bench.random_model import KINDS, model_folder
from worker.model.architecture import Architecture
from worker.model.engine import engaged
from worker.model.load import load_prepared, prepare_stage
from worker.model.load_options import Engine, LoadOptions
from worker.model.pages import empty_tensor
from worker.model.quantization_choice import QuantizationChoice
from worker.model.read_size import read_bytes
from worker.model.run import StageRunner
from worker.model.weight_size import tensor_bytes
from worker.protocol.stage import StageSlice, split_layers

_READ_BYTES, _WIDTH = 512 << 20, 4096
_PLAIN = QuantizationChoice("bfloat16", (), (), ())


def _now_s() -> float:
    return thread_time() if torch.get_num_threads() == 1 else perf_counter()


@dataclass(eq=False)
class TimedStage:
    """One stage and what its ops took."""

    runner: StageRunner
    step_bytes: int
    load_ms: float
    prompt_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)

    @staticmethod
    def load(folder: Path, piece: StageSlice, engine: Engine) -> TimedStage:
        """Load a stage as a worker does."""
        request = prepare_stage(folder, piece, LoadOptions(engine=engine))
        step_bytes = sum(
            read_bytes(request.plan, tensor_bytes(request.plan, _PLAIN, "cpu")).values()
        )
        began_s = _now_s()
        runner = engaged(load_prepared(request))
        if engine == "fast" and runner.decode_step is None:
            raise SystemExit("; ".join(runner.loaded.notes))
        return TimedStage(runner, step_bytes, (_now_s() - began_s) * 1e3)


def decode(stages: list[TimedStage], prompt: torch.Tensor, steps: int) -> list[int]:
    """Run a prompt and `steps` greedy steps through the stages; return the tokens."""
    caches = [stage.runner.new_cache() for stage in stages]
    x, tokens = prompt, []
    for i in range(steps + 1):
        for stage, cache in zip(stages, caches, strict=True):
            is_last = stage.runner.stage.is_last
            want: Any = "logits" if is_last and not stage.runner.stage.is_whole else "hidden"
            began_s = _now_s()
            x = stage.runner.forward(x, cache, want=want)
            if is_last and want == "hidden":
                x = stage.runner.head(x)
            (stage.step_ms if i else stage.prompt_ms).append((_now_s() - began_s) * 1e3)
        tokens.append(int(x[-1].argmax()))
        x = torch.tensor([tokens[-1:]])
    return tokens


def read_gbps(numbers: torch.Tensor) -> float:
    """Read `numbers`, more than caches hold; 10^9 bytes a second, the faster of two ways."""
    rows = numbers.view(torch.bfloat16).view(-1, _WIDTH)
    row = torch.ones(_WIDTH, dtype=torch.bfloat16)
    began_s = _now_s()
    numbers.sum()
    summed_s = _now_s()
    torch.mv(rows, row)
    return numbers.nbytes / min(summed_s - began_s, _now_s() - summed_s) / 1e9


def figures(engine: str, stages: list[TimedStage], gbps: float) -> dict[str, Any]:
    """Return what one engine showed."""
    bounds = [stage.step_bytes / gbps / 1e6 for stage in stages]
    fastest = [min(stage.step_ms) for stage in stages]
    return {
        "engine": engine,
        "load_ms": [round(stage.load_ms) for stage in stages],
        "prompt_ms": [round(median(stage.prompt_ms), 1) for stage in stages],
        "fastest_prompt_ms": [round(min(stage.prompt_ms), 1) for stage in stages],
        "step_ms": [round(median(stage.step_ms), 2) for stage in stages],
        "fastest_step_ms": [round(ms, 2) for ms in fastest],
        "bound_ms": [round(ms, 2) for ms in bounds],
        "of_bound": [round(a / b, 3) for a, b in zip(bounds, fastest, strict=True)],
    }


def run(
    folder: Path, num_stages: int, rounds: int, prompt_tokens: int, steps: int
) -> dict[str, Any]:
    """Measure one model."""
    pieces = split_layers(Architecture.read(folder).num_layers, num_stages)
    engines: tuple[Engine, ...] = ("fast", "stock")
    ways = {name: [TimedStage.load(folder, p, name) for p in pieces] for name in engines}
    # on huge pages, as weights are: others are read more slowly
    numbers = empty_tensor((_READ_BYTES // 8,), torch.int64).fill_(1)
    prompt = torch.randint(5, 1000, (1, prompt_tokens), generator=torch.Generator().manual_seed(0))
    speeds, answers = [], []
    for i in range(rounds):
        speeds.append(read_gbps(numbers))
        for name in engines if i % 2 == 0 else reversed(engines):
            answers.append(decode(ways[name], prompt, steps))
        gc.collect()
    return {
        "model": folder.name,
        "stages": num_stages,
        "threads": torch.get_num_threads(),
        "prompt_tokens": prompt_tokens,
        "rounds": rounds,
        "read_gbps": {"median": round(median(speeds), 2), "fastest": round(max(speeds), 2)},
        "same_tokens": all(answer == answers[0] for answer in answers),
        "engines": [figures(name, ways[name], max(speeds)) for name in engines],
    }


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="1.1b", help=f"{', '.join(KINDS)} or a folder")
    parser.add_argument("--folder", type=Path, help="where a model made here is kept")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=16)
    given = parser.parse_args()
    disable_progress_bar()
    torch.set_num_threads(given.threads)
    kind, own = (given.model, given.folder) if given.model in KINDS else ("tiny", Path(given.model))
    with model_folder(kind, own) as folder:
        found = run(folder, given.stages, given.rounds, given.prompt_tokens, given.steps)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
