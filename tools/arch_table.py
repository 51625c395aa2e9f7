"""Try every causal-LM type of transformers, print the table, write it to docs and product.

    python -m tools.arch_table --jobs 2 --work /tmp/arch [TYPE ...]

Results are kept in WORK/results, one file a type; a type that is there is not tried again.
`--write` turns them into docs/architectures.md and worker/model/verified.json, `--check` tells
whether they still say what those files say.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VERIFIED = ROOT / "worker" / "model" / "verified.json"
MIN_PASSING = 115
# What one type may take: processor time, and time at all where others have the processors.
_TYPE_CPU_S, _TYPE_S = 120, 1800
_THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
_PASSING = ("plain", "tokens", "float32", "tokens+float32")


def main() -> int:
    """Run the table; the exit code is 1 when fewer types pass than promised."""
    arguments = _parser().parse_args()
    results = arguments.work / "results"
    results.mkdir(parents=True, exist_ok=True)
    _prepare(arguments.work)
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


def _prepare(work: Path) -> None:
    """Import what a worker imports, once: the children that try the types are forked from here."""
    os.environ.update(_THREADS)
    import torch
    import transformers

    from worker.backends.transformers.lean_imports import lean_imports

    # As a worker does: what it leaves out of the libraries must be missed by no model's code.
    with lean_imports():
        from tools.arch_engine import check_type

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    check_type("llama", work / "warm")  # what every type needs is there from then on
    gc.collect()
    gc.freeze()


def _try(types: list[str], work: Path, jobs: int) -> list[dict[str, Any]]:
    results = work / "results"
    _try_apart([name for name in types if not (results / f"{name}.json").exists()], work, jobs)
    return [_read(results / f"{name}.json") for name in types]


def _try_apart(types: list[str], work: Path, jobs: int) -> None:
    """Try each type in a child of its own, `jobs` at a time; one that dies or stalls is a row."""
    fork = multiprocessing.get_context("fork")
    waiting = types[::-1]
    running: dict[BaseProcess, float] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            child: BaseProcess = fork.Process(target=_try_here, args=(name, work), name=name)
            child.start()
            running[child] = time.monotonic() + _TYPE_S
        left_s = max(0.0, min(running.values()) - time.monotonic())
        wait([child.sentinel for child in running], timeout=left_s)
        for child, deadline_s in list(running.items()):
            if child.is_alive() and time.monotonic() < deadline_s:
                continue
            del running[child]
            _finish(child, work)
            print(child.name, file=sys.stderr, flush=True)


def _finish(child: BaseProcess, work: Path) -> None:
    reason = f"its process took longer than {_TYPE_S} s"
    if child.is_alive():
        child.kill()
        child.join()
    else:
        child.join()
        reason = f"its process died (exit status {child.exitcode})"
    if not (work / "results" / f"{child.name}.json").exists():
        from tools.arch_engine import ArchResult

        _store(work, asdict(ArchResult(child.name, reason=reason)))


def _try_here(model_type: str, work: Path) -> None:
    """Try a type in this child, with what it prints in a file of its own."""
    from tools.arch_engine import check_type

    resource.setrlimit(resource.RLIMIT_CPU, (_TYPE_CPU_S, _TYPE_CPU_S))
    with (work / f"{model_type}.log").open("wb") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    _store(work, check_type(model_type, work / "models").to_json())


def all_types() -> list[str]:
    """Every model type with a causal language model, and the multi-modal ones with a recipe."""
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
    return parser


def _store(work: Path, row: dict[str, Any]) -> None:
    """Publish a result whole, so that a stopped run never leaves half of one."""
    target = work / "results" / f"{row['model_type']}.json"
    draft = target.with_suffix(".part")
    draft.write_text(json.dumps(row), "utf-8")
    draft.replace(target)


def _read(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return row


if __name__ == "__main__":
    raise SystemExit(main())
