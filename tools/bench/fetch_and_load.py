"""Compare fetching and loading a split model with fetching and loading the whole by transformers.

    python -m tools.bench.fetch_and_load [--model llama|moe|tiny] [--stages N] [--threads N]

Both start with nothing from a hub on this machine, in turn. `fetch` is from the start of the
processes to the last `ready`, `again` the same with what is then in the cache, each with
everything a user waits for: Python, imports, planning, one token as warm-up. Each stage has a
cache of its own, and its turn of the machine, as on a host of its own; the slowest counts. With
`--side-by-side` they share the machine instead, and the whole model gets as many threads as they
have together. `served` counts file bodies sent by the hub to all; `peak` is the highest resident
size of the largest process, and `disk` what the fullest cache holds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from tests.support.hub import Hub, serve_hub
from tools.bench.listing_hub import ListingHub, write_pages
from tools.bench.program import ROOT, Program
from tools.bench.random_model import KINDS, model_folder
from tools.bench.rounds import in_turn, spread

_REPO = "bench/model"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way, once, from nothing to ready and again; sizes are in bytes."""

    fetch_s: float
    again_s: float
    served_bytes: int
    served_again_bytes: int
    peak_bytes: int
    disk_bytes: int


class FetchBench:
    """The two ways, over one hub; what they fetch goes below `folder` and is removed."""

    def __init__(
        self,
        hub: Hub,
        folder: Path,
        stages: int,
        threads: int,
        *,
        again: bool = True,
        side_by_side: bool = False,
    ) -> None:
        self._hub = hub
        self._again = again
        self._side_by_side = side_by_side
        self._folder = folder
        self._stages = stages
        self._threads = threads

    def stages(self) -> Outcome:
        """Start one worker for each stage."""
        same = f"--num-stages {self._stages} --threads {self._threads} --max-context 128".split()
        workers = [
            ["-m", "worker", "--model-id", _REPO, "--device", "cpu", "--stage", str(i), *same]
            for i in range(self._stages)
        ]
        return self._outcome(workers, self._threads)

    def whole(self) -> Outcome:
        """Start one process that runs `from_pretrained`."""
        threads = self._threads * (self._stages if self._side_by_side else 1)
        program = ["-m", "tools.bench.whole_model", _REPO, str(threads)]
        return self._outcome([program], threads)

    def _outcome(self, programs: Sequence[list[str]], threads: int) -> Outcome:
        homes = [self._folder / f"host{i}" for i in range(len(programs))]
        try:
            self._hub.forget()
            fetch_s, peak_bytes = self._in_turns(programs, homes, threads)
            served_bytes = self._hub.sent_bytes()
            self._hub.forget()
            again_s, peak_again_bytes = 0.0, 0
            if self._again:
                again_s, peak_again_bytes = self._in_turns(programs, homes, threads)
            return Outcome(
                fetch_s,
                again_s,
                served_bytes,
                self._hub.sent_bytes(),
                max(peak_bytes, peak_again_bytes),
                max(map(_disk_bytes, homes)),
            )
        finally:
            for home in homes:
                shutil.rmtree(home, ignore_errors=True)

    def _in_turns(
        self, programs: Sequence[list[str]], homes: Sequence[Path], threads: int
    ) -> tuple[float, int]:
        """As `_until_ready`; of programs that each get the machine, the worst figures."""
        if self._side_by_side:
            return self._until_ready(programs, homes, threads)
        turns = [
            self._until_ready([program], [home], threads)
            for program, home in zip(programs, homes, strict=True)
        ]
        return max(took_s for took_s, _ in turns), max(peak for _, peak in turns)

    def _until_ready(
        self, programs: Sequence[list[str]], homes: Sequence[Path], threads: int
    ) -> tuple[float, int]:
        """Start all, wait for each to be ready; return how long it took and the largest peak."""
        began_s = perf_counter()
        started: list[Program] = []
        try:
            for program, home in zip(programs, homes, strict=True):
                started.append(Program(program, _environment(self._hub.endpoint, home, threads)))
            for each in started:
                each.wait_ready()
            elapsed_s = perf_counter() - began_s
            return elapsed_s, max(each.peak_bytes() for each in started)
        finally:
            for each in started:
                each.end()


def _environment(endpoint: str, home: Path, threads: int) -> dict[str, str]:
    own = ("HF_", "HUGGING", "TRANSFORMERS_", "STAGELINE_", "MODEL", "STAGE", "NUM_STAGES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
    }


def _disk_bytes(folder: Path) -> int:
    return sum(
        path.stat().st_blocks * 512
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def report(found: dict[str, list[Outcome]]) -> str:
    """Format the table: a line for each way, and the ratios of the first to the second."""
    names = ("fetch s", "again s", "served MiB", "again", "peak MiB", "disk MiB")
    widths = (18, 18, 11, 6, 9, 9)
    head = " ".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    lines = [f"{'':20} {head}"]
    for name, outcomes in found.items():
        lines.append(
            f"{name:20} {spread([o.fetch_s for o in outcomes], 1):>18} "
            f"{spread([o.again_s for o in outcomes], 1):>18} "
            f"{max(o.served_bytes for o in outcomes) / _MIB:11.1f} "
            f"{max(o.served_again_bytes for o in outcomes) / _MIB:6.1f} "
            f"{max(o.peak_bytes for o in outcomes) / _MIB:9.0f} "
            f"{max(o.disk_bytes for o in outcomes) / _MIB:9.1f}"
        )
    split, whole = found.values()
    ratios = [
        _ratio([getattr(o, field) for o in split], [getattr(o, field) for o in whole])
        for field in ("fetch_s", "again_s", "served_bytes", "peak_bytes", "disk_bytes")
    ]
    fetch, again, served, peak, disk = ratios
    lines.append(
        f"{'ratio':20} {fetch:18.2f} {again:18.2f} {served:11.3f} {'':6} {peak:9.2f} {disk:9.3f}"
    )
    return "\n".join(lines)


def _ratio(values: list[float], others: list[float]) -> float:
    return median(values) / median(others) if median(others) else 0.0


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=KINDS, default="llama")
    parser.add_argument("--folder", type=Path, help="keep the model here, or use what is there")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each stage")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--side-by-side", action="store_true", help="start all stages at once on this machine"
    )
    parser.add_argument(
        "--no-again", dest="again", action="store_false", help="leave out the second start"
    )
    options = parser.parse_args(argv)
    with (
        model_folder(options.model, options.folder) as folder,
        tempfile.TemporaryDirectory(prefix="stageline-bench-") as caches,
        serve_hub(ListingHub({_REPO: folder}, pages=Path(caches))) as hub,
    ):
        write_pages(folder, _REPO, Path(caches))
        bench = FetchBench(
            hub,
            Path(caches),
            options.stages,
            options.threads,
            again=options.again,
            side_by_side=options.side_by_side,
        )
        size_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        print(
            f"{size_bytes / 1e9:.2f} GB in {options.stages} stage(s) of {options.threads} "
            f"thread(s), {options.rounds} round(s) in turn, medians"
        )
        ways = {f"{options.stages} stage(s)": bench.stages, "transformers, whole": bench.whole}
        print(report(in_turn(ways, options.rounds)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
