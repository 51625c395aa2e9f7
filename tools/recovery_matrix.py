"""Print what recovery makes of every fault, on every stage, at every moment.

Usage: ``python -m tools.recovery_matrix [--workers history|tiny|model] [--out FILE]``, with
``--fault``, ``--moment`` (each may be given several times) and ``--at-once N`` to play a part of
it; with ``--links chain`` the stages hand hidden states straight on. A cell says whether all
tokens were those of the undisturbed run, and how long restart and replay took. ``history`` workers
answer with hashes of all they were sent; ``tiny`` is a random Llama, ``model`` the demo model.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.links.names import CHAIN, STAR
from orchestrator.specs import StageSpec, WorkerOptions
from orchestrator.timeouts import Timeouts
from tests.support.recovery_lab import FAULTS, MOMENTS, Cell, Outcome
from tests.support.recovery_matrix import Bench, history_bench, play_matrix, table, undisturbed
from tools.demo_model import default_dir, demo_model


def real_bench(folder: Path) -> Bench:
    """Return workers of a real model on this machine, one thread each."""
    options = WorkerOptions(model_id=str(folder), threads=1)
    environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

    def spec(stage: int, num_stages: int) -> StageSpec:
        return StageSpec(
            stage=stage, num_stages=num_stages, options=options, environment=environment
        )

    bench = Bench(
        spec=spec,
        expected=lambda ask: [],
        holds=False,
        # Libraries keep an interpreter busy while they are imported.
        timeouts=Timeouts(silence_s=3.0, idle_silence_s=20.0, idle_ping_s=0.5),
    )
    return replace(bench, expected=asyncio.run(undisturbed(bench)))


def tiny_model(folder: Path) -> Path:
    """Write a random Llama of six layers, and a tokenizer of one id a byte."""
    from tests.support.tiny import tiny_checkpoint
    from tests.support.tokenizers import byte_tokenizer

    tiny_checkpoint(folder, "llama", vocab_size=300)
    byte_tokenizer().save_pretrained(folder)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Play the matrix and print it; 1 where a cell is not good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", choices=("history", "tiny", "model"), default="history")
    parser.add_argument("--fault", action="append", choices=FAULTS)
    parser.add_argument("--moment", action="append", choices=MOMENTS)
    parser.add_argument("--links", choices=(STAR, CHAIN), default=STAR)
    parser.add_argument("--at-once", type=int, default=4, help="pipelines side by side")
    parser.add_argument("--out", type=Path, help="write the table there as well")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if options.workers == "history":
            bench = history_bench()
        elif options.workers == "tiny":
            bench = real_bench(tiny_model(Path(folder)))
        else:
            bench = real_bench(demo_model(default_dir()))
        outcomes = asyncio.run(
            play_matrix(
                replace(bench, links=options.links),
                faults=options.fault or FAULTS,
                moments=options.moment or MOMENTS,
                at_once=options.at_once,
                on_outcome=progress,
            )
        )
    text = table(outcomes)
    good = sum(outcome.is_good for outcome in outcomes.values())
    text += f"\n\n{good} of {len(outcomes)} cells with the same tokens"
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0 if good == len(outcomes) else 1


def progress(cell: Cell, outcome: Outcome) -> None:
    """Tell of a cell that has been played."""
    print(cell.name, "ok" if outcome.is_good else outcome, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
