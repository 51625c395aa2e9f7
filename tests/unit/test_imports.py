"""Starting light: the protocol and the orchestrator's command line load no heavy library."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "torch",
    "transformers",
    "accelerate",
    "bitsandbytes",
    "numpy",
    "tokenizers",
    "safetensors",
)
HELP_LIMIT_S = 2.0  # 0.2 s on a quiet machine; a busy one must not make the test flake


def heavy_modules_after(*args: str) -> list[str]:
    """Run python with ``args`` and return which heavy modules that process had loaded at exit."""
    code = (
        "import atexit, json, runpy, sys\n"
        f"report = lambda: print(json.dumps([m for m in {HEAVY} if m in sys.modules]))\n"
        "atexit.register(report)\n"
        "kind, name, *sys.argv[1:] = sys.argv[1:]\n"
        "__import__(name) if kind == 'import' else runpy.run_module(name, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


@pytest.mark.parametrize(
    "args",
    [
        ("import", "worker"),
        ("import", "worker.protocol.codec"),
        ("import", "worker.cli"),
        ("import", "orchestrator.cli"),
        ("run", "orchestrator", "--help"),
        ("run", "worker", "--help"),
    ],
    ids=" ".join,
)
def test_a_light_start_loads_no_heavy_library(args: tuple[str, ...]) -> None:
    assert heavy_modules_after(*args) == []


def test_orchestrator_help_answers_at_once(record_property: pytest.RecordProperty) -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "orchestrator", "--help"],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    took_s = time.monotonic() - start
    record_property("help_s", round(took_s, 3))
    assert (done.returncode, done.stderr, "run" in done.stdout) == (0, "", True)
    assert took_s < HELP_LIMIT_S
