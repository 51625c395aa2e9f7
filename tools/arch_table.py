"""Try every causal-LM type of transformers, print the table, write it to docs and product.

    python -m tools.arch_table --jobs 2 --work /tmp/arch [TYPE ...]

Results are kept in WORK/results, one file a type; a type that is there is not tried again.
`--write` turns them into docs/architectures.md and worker/model/verified.json, `--check` tells
whether they still say what those files say.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from worker.backends.transformers.lean_imports import lean_imports

ROOT = Path(__file__).resolve().parent.parent
VERIFIED = ROOT / "worker" / "model" / "verified.json"
MIN_PASSING = 115
_START_S, _TYPE_S = 60, 120
_THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
_PASSING = ("plain", "tokens", "float32", "tokens+float32")


def main() -> int:
    """Run the table; the exit code is 1 when fewer types pass than promised."""
    arguments = _parser().parse_args()
    results = arguments.work / "results"
    results.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        return _run_here(arguments.one, arguments.work)
    types = arguments.types or all_types()
    rows = _try(types, arguments.work, arguments.jobs)
    changed = changed_types(rows) if arguments.check else []
    if changed:  # Once more, alone: on a busy machine a type may have run out of time.
        for name in changed:
            (results / f"{name}.json").unlink(missing_ok=True)
        rows = _try(types, arguments.work, 1)
        changed = changed_types(rows)
    print(table(rows))
    passing = sum(row["mode"] in _PASSING for row in rows)
    print(f"{passing} of {len(rows)} model types pass, at least {MIN_PASSING} must")
    if arguments.write:
        write_outputs(rows)
    if changed:
        print(f"no longer as in {VERIFIED.relative_to(ROOT)}: {', '.join(changed)}")
    return 0 if not changed and (arguments.types or passing >= MIN_PASSING) else 1


def changed_types(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the types whose mode is not the one that the product ships."""
    shipped = json.loads(VERIFIED.read_text("utf-8"))
    return [
        row["model_type"]
        for row in rows
        if row["mode"] != shipped.get(row["model_type"], {"mode": "unknown"})["mode"]
    ]


def _try(types: list[str], work: Path, jobs: int) -> list[dict[str, Any]]:
    results = work / "results"
    todo = [name for name in types if not (results / f"{name}.json").exists()]
    with ThreadPoolExecutor(jobs) as pool:
        for name in pool.map(lambda t: _run_apart(t, work), _in_groups(todo)):
            print(name, file=sys.stderr, flush=True)
    return [_read(results / f"{name}.json") for name in types]


def all_types() -> list[str]:
    """Every model type with a causal language model, and the multi-modal ones with a recipe."""
    import transformers

    transformers.logging.set_verbosity_error()
    from tools.tiny_configs import COMPOSITES, NOT_GENERATIVE
    from worker.model import internals

    return sorted({*internals.known_causal_lm_types(), *COMPOSITES} - NOT_GENERATIVE)


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Lay the rows out as a Markdown table."""
    lines = [
        "| model type | mode | stages tried | left-padded batch | shards | note |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        note = row["reason"] or ("" if row["cuts"] == "any" else f"cuts: {row['cuts']}")
        stages = ", ".join(str(n) for n in row["stages"]) if row["mode"] in _PASSING else ""
        cells = (
            f"`{row['model_type']}`",
            row["mode"],
            stages,
            row["padded"] if row["mode"] in _PASSING else "",
            str(row["shards"] or "") if row["mode"] in _PASSING else "",
            note.replace("|", "/"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_outputs(rows: list[dict[str, Any]]) -> None:
    """Write docs/architectures.md and the table the product ships."""
    passing = [row for row in rows if row["mode"] in _PASSING]
    refused = [row for row in rows if row["mode"] == "refused"]
    unknown = [row for row in rows if row["mode"] == "unknown"]
    intro = (ROOT / "tools" / "arch_intro.md").read_text("utf-8")
    text = intro.format(
        passing=len(passing), total=len(rows), table=table(passing), refused=table(refused),
        unknown=table(unknown),
    )  # fmt: skip
    (ROOT / "docs").mkdir(exist_ok=True)
    (ROOT / "docs" / "architectures.md").write_text(text, "utf-8")
    verified = {
        row["model_type"]: {"mode": row["mode"]}
        | ({"reason": row["reason"]} if row["mode"] == "refused" else {})
        for row in passing + refused
    }
    VERIFIED.write_text(json.dumps(verified, indent=1, sort_keys=True) + "\n", "utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="arch_table", description="Try all architectures.")
    parser.add_argument("types", nargs="*", help="model types (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--work", type=Path, required=True, help="folder for results and models")
    parser.add_argument("--write", action="store_true", help="write docs and verified.json")
    parser.add_argument("--check", action="store_true", help="fail where verified.json differs")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    return parser


def _in_groups(types: list[str], size: int = 12) -> list[list[str]]:
    """Some types share a process, since importing takes longer than trying one."""
    return [types[i : i + size] for i in range(0, len(types), size)]


def _run_apart(types: list[str], work: Path) -> str:
    """Try `types` in one child; a type that kills or stalls it is recorded, the rest goes on."""
    left = list(types)
    while left:
        command = [sys.executable, "-m", "tools.arch_table", "--work", str(work), "--one", *left]
        timeout_s = _START_S + _TYPE_S * len(left)
        try:
            with (work / f"{left[0]}.log").open("w") as log:
                child = subprocess.run(
                    command,
                    cwd=ROOT,
                    timeout=timeout_s,
                    env=_environment(),
                    stdout=log,
                    stderr=log,
                )
            reason = f"its process died (exit status {child.returncode})"
        except subprocess.TimeoutExpired:
            reason = f"its process took longer than {timeout_s} s"
        left = [name for name in left if not (work / "results" / f"{name}.json").exists()]
        if left:
            from dataclasses import asdict

            from tools.arch_engine import ArchResult

            _store(work, asdict(ArchResult(left.pop(0), reason=reason)))
    return " ".join(types)


def _run_here(types: list[str], work: Path) -> int:
    import torch
    import transformers

    # As a worker does: what it leaves out of the libraries must be missed by no model's code.
    with lean_imports():
        from tools.arch_engine import check_type

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for model_type in types:
        _store(work, check_type(model_type, work / "models").to_json())
    return 0


def _store(work: Path, row: dict[str, Any]) -> None:
    """Publish a result whole, so that a stopped run never leaves half of one."""
    target = work / "results" / f"{row['model_type']}.json"
    draft = target.with_suffix(".part")
    draft.write_text(json.dumps(row), "utf-8")
    draft.replace(target)


def _read(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return row


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, **_THREADS}


if __name__ == "__main__":
    raise SystemExit(main())
