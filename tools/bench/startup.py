"""How long it takes until a stage serves and a run shows its first token, from a warm page cache.

    python -m tools.bench.startup --model-id FOLDER [--local 1,2] [--rounds N] [--json]

Ways, in turn, each in processes of its own:

libraries      `import torch, transformers`
with classes   the same, and the classes without which no model runs: transformers imports them late
read           every byte of the weight files once, with as many threads as the worker has
worker         from the start of Python to the ready line, one stage with all layers
worker, new    the same, on a host that remembers nothing of earlier starts
run, N         `orchestrator run --local N` from its start to the first byte of its answer

`wall` is what a user waits, and grows with whatever else the machine does; `cpu` is the processor
time of the process and its children up to their end, and hardly does. The ratios are those
of the medians. One worker is started before all, uncounted, so that the others can take from the
cache folder what it found out. Below it is where a worker's time went, as its
`boot_profile` tells.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from tools.bench.program import ROOT
from tools.bench.rounds import in_turn, spread

_LIBRARIES = "import torch, transformers"
_CLASSES = (
    "import torch; from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel"
)
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Start:
    """One start; `phases_ms` is the worker's own account."""

    wall_s: float
    cpu_s: float
    phases_ms: dict[str, float] = field(default_factory=dict)


def started(arguments: list[str], is_up: Callable[[bytes], bool] | None = None) -> Start:
    """Run Python until a line of its stdout says that it is up, by default until it ends.

    Raises:
        RuntimeError: it ended before, or with an error.
    """
    began_s = perf_counter()
    with subprocess.Popen(
        [sys.executable, "-P", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        lines, up_s = [], None
        for line in process.stdout:
            lines.append(line)
            if up_s is None and is_up is not None and is_up(line):
                up_s = perf_counter()
                process.stdin.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if is_up is None:
        up_s = perf_counter()
    if process.returncode != 0 or up_s is None:
        raise RuntimeError(f"{arguments} ended with {process.returncode}: {b''.join(lines[-3:])!r}")
    return Start(up_s - began_s, usage.ru_utime + usage.ru_stime, phases_of(lines))


def phases_of(lines: list[bytes]) -> dict[str, float]:
    """Return the phases of the `boot_profile` among the lines of a worker; {} without one."""
    for line in lines:
        with contextlib.suppress(ValueError):
            values = json.loads(line)
            if isinstance(values, dict) and values.get("event") == "boot_profile":
                return dict(values["phases_ms"])
    return {}


def is_ready(line: bytes) -> bool:
    """Tell a worker's ready line."""
    return line.startswith(b'{"status"') and b'"ready"' in line


def started_new(arguments: list[str]) -> Start:
    """Start a worker whose cache folder is empty."""
    with tempfile.TemporaryDirectory() as folder:
        return started([*arguments, f"--cache-dir={folder}"], is_ready)


def read_files(folder: Path, threads: int) -> Start:
    """Read every weight file once, in shares."""
    files = sorted(folder.glob("*.safetensors"))
    pieces = [
        (path, start) for path in files for start in range(0, path.stat().st_size, _PIECE_BYTES)
    ]
    began_s = perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_read, [pieces[i::threads] for i in range(threads)]))
    took_s = perf_counter() - began_s
    return Start(took_s, took_s * threads)


def _read(pieces: list[tuple[Path, int]]) -> None:
    scratch = bytearray(_PIECE_BYTES)
    for path, start in pieces:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            file.readinto(scratch)


def ways(folder: Path, locals_: list[int], threads: int) -> dict[str, Callable[[], Start]]:
    """Name each way of the table."""
    shared = [f"--model-id={folder}", f"--threads={threads}"]
    worker = ["-m", "worker", *shared, "--stage=0", "--num-stages=1"]
    found: dict[str, Callable[[], Start]] = {
        "libraries": partial(started, ["-c", _LIBRARIES]),
        "with classes": partial(started, ["-c", _CLASSES]),
        "read": partial(read_files, folder, threads),
        "worker": partial(started, worker, is_ready),
        "worker, new": partial(started_new, worker),
    }
    for count in locals_:
        run = ["-m", "orchestrator", "run", f"--local={count}", *shared, "--no-bundle"]
        words = ["--prompt=Hi", "--raw", "--max-new-tokens=1", "--ignore-eos"]
        found[f"run, {count}"] = partial(started, [*run, *words], lambda line: True)
    return found


def report(found: dict[str, list[Start]]) -> str:
    """Format the tables."""
    lines = [f"{'':14} {'wall s':>22} {'cpu s':>22}"]
    for name, starts in found.items():
        wall = spread([start.wall_s for start in starts])
        cpu = spread([start.cpu_s for start in starts])
        lines.append(f"{name:14} {wall:>22} {cpu:>22}")
    for name in ("libraries", "with classes"):
        by_wall, by_cpu = ratios(found, name)
        lines.append(f"worker by ({name} + read): {by_wall:.2f} of wall, {by_cpu:.2f} of cpu")
    lines += [f"  {name:32} {ms:8.0f} ms" for name, ms in phases(found["worker"]).items()]
    return "\n".join(lines)


def ratios(found: dict[str, list[Start]], of: str) -> tuple[float, float]:
    """Return the worker's start by the sum of the way `of` and the reading: wall, cpu."""
    starts = {name: found[name] for name in ("worker", of, "read")}
    wall = {name: median(start.wall_s for start in own) for name, own in starts.items()}
    cpu = {name: median(start.cpu_s for start in own) for name, own in starts.items()}
    return wall["worker"] / (wall[of] + wall["read"]), cpu["worker"] / (cpu[of] + cpu["read"])


def phases(starts: list[Start]) -> dict[str, float]:
    """Return the median of each phase, in the order in which they end."""
    names = list(starts[0].phases_ms)
    return {name: median(s.phases_ms.get(name, 0.0) for s in starts) for name in names}


def as_json(found: dict[str, list[Start]]) -> dict[str, Any]:
    """Return all that was measured."""
    wall, cpu = ratios(found, "libraries")
    return {
        "ways": {
            name: {"wall_s": [s.wall_s for s in starts], "cpu_s": [s.cpu_s for s in starts]}
            for name, starts in found.items()
        },
        "ratio_to_libraries_and_read": {"wall": wall, "cpu": cpu},
        "phases_ms": phases(found["worker"]),
    }


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model-id", type=Path, required=True, help="a folder")
    parser.add_argument("--local", default="1,2", help="numbers of stages, or none")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    counts = [int(text) for text in options.local.split(",") if text]
    measured = ways(options.model_id, counts, options.threads)
    measured["worker"]()
    found = in_turn(measured, options.rounds)
    print(json.dumps(as_json(found), indent=2) if options.json else report(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
