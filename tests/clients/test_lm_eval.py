"""`lm-eval` through a server: each likelihood, and so the score, is that of its own backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ROOT
from tests.support.real_clients import client_package
from tests.support.serving import served

client_package("lm_eval")

pytestmark = [pytest.mark.clients, pytest.mark.demo_model, pytest.mark.timeout(400)]

RUN_TWO = ROOT / "tests" / "clients" / "lm_eval" / "run_two.py"
BACKENDS = ("hf", "hf-long", "served")
METRICS = ("acc,none", "acc_norm,none")
# It adds up float32 in another order than we do.
SUM_ERROR = 1e-4
# One step of bfloat16 in a logit of 8 to 16; plain transformers differ that much among themselves.
ROUNDING = 0.0625 * 2


def outcome(folder: Path) -> tuple[dict[str, float], list[list[float]], list[list[str]]]:
    """Return the scores, and for each question and choice likelihood and whether it is greedy."""
    (results,) = folder.glob("*/results_*.json")
    (samples,) = folder.glob("*/samples_*.jsonl")
    scores = json.loads(results.read_text())["results"]["stageline_facts"]
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    replies = [[reply[0] for reply in line["resps"]] for line in lines]
    likelihoods = [[float(likelihood) for likelihood, _ in line] for line in replies]
    greedy = [[is_greedy for _, is_greedy in line] for line in replies]
    return {name: scores[name] for name in METRICS}, likelihoods, greedy


def test_the_score_is_that_of_its_own_backend(demo_model_path: Path, tmp_path: Path) -> None:
    stages = ("--local", "2", "--model-id", str(demo_model_path), "--no-bundle", "--threads", "1")
    with served("--served-model-name", "smollm2", stages=stages) as server:
        url = f"{server.url}/v1/completions"
        words = (str(demo_model_path), server.model, url, str(tmp_path))
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
        done = subprocess.run(
            [sys.executable, str(RUN_TWO), *words],
            cwd=RUN_TWO.parent,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=350,
        )
    assert done.returncode == 0, done.stderr
    found = {name: outcome(tmp_path / name) for name in BACKENDS}
    print(side_by_side({name: scores for name, (scores, _, _) in found.items()}))
    (scores, plain, _), (_, as_long, greedy), (served_scores, ours, ours_greedy) = found.values()
    assert (served_scores, ours_greedy) == (scores, greedy)
    assert farthest(ours, as_long) < SUM_ERROR
    assert farthest(ours, plain) <= ROUNDING


def farthest(left: list[list[float]], right: list[list[float]]) -> float:
    """Return the largest difference of two tables of one shape."""
    rows = zip(left, right, strict=True)
    return max(abs(x - y) for row in rows for x, y in zip(*row, strict=True))


def side_by_side(scores: dict[str, Any]) -> str:
    """Return a table, one line for each backend."""
    lines = [f"{'backend':10} {' '.join(f'{name:>14}' for name in METRICS)}"]
    for backend, values in scores.items():
        lines.append(f"{backend:10} {' '.join(f'{values[name]:14.4f}' for name in METRICS)}")
    return "\n".join(lines)
