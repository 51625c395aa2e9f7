"""Run every check of the repository in order; stop at the first that fails.

``python tools/check.py`` is what ``make test`` and CI run.
``--only STEP`` (repeatable) picks steps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable

# Two at a time: three, beside the table of architectures, let limits for starting be missed. A
# module's tests stay together, as they share its models; left to itself, xdist begins with the
# files of the most tests and ends with the slow ones.
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("format", (PYTHON, "-m", "ruff", "format", "--check", "--quiet", ".")),
    ("lint", (PYTHON, "-m", "ruff", "check", "--quiet", ".")),
    ("layers", (PYTHON, "-m", "tools.layers")),
    ("protocol", (PYTHON, "-m", "tools.protocol_doc", "--check")),
    ("types", (PYTHON, "-m", "mypy", "--no-error-summary")),
    ("tests", (PYTHON, "-m", "pytest", "-q", "--durations=10", *SIDE_BY_SIDE)),
    ("wheel", (PYTHON, "-m", "tools.wheel_smoke")),
)


def step_environment() -> dict[str, str]:
    """Return the environment of a step: this one, with one busy thread for each process."""
    # Tests run several model processes at once; OpenMP threads that spin would starve them.
    found = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **os.environ}
    # They start a worker a thousand times, which compiled the product anew each time: 0.1 s.
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def run_step(name: str, command: tuple[str, ...]) -> tuple[int, float]:
    """Run one step with its output passed through; return exit status and seconds."""
    print(f"==> {name}", flush=True)
    start = time.monotonic()
    status = subprocess.run(
        command, cwd=ROOT, env=step_environment(), stdin=subprocess.DEVNULL
    ).returncode
    took_s = time.monotonic() - start
    print(f"==> {name}: {'ok' if status == 0 else f'exit {status}'} in {took_s:.1f} s", flush=True)
    return status, took_s


def main() -> int:
    """Run the chosen steps; exit 1 when one fails."""
    parser = argparse.ArgumentParser(description="run the checks of the repository")
    names = [name for name, _ in STEPS]
    parser.add_argument("--only", action="append", choices=names, metavar="STEP", help=str(names))
    only = parser.parse_args().only or names
    times: list[str] = []
    for name, command in STEPS:
        if name not in only:
            continue
        status, took_s = run_step(name, command)
        times.append(f"{name} {took_s:.1f} s")
        if status:
            print(f"check: {name} failed; `{Path(__file__).name} --only {name}` repeats it")
            return 1
    print("check: all passed: " + ", ".join(times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
