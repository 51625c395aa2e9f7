"""Break runs in every known way, diagnose each bundle, and compare with what is true.

Usage: ``python -m tools.diagnosis_table [--jobs N] [--record] [KIND …]``. Prints one line for each
kind and exits 1 if any is wrong. Some kinds need root (a memory cgroup, a small disk, a network
of their own) and OpenSSH's server. ``--record`` keeps the bundles for the tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.faults.kinds import made, names
from tests.support.faults.record import record
from tests.support.faults.verdict import Verdict, judge

WIDTHS = (24, 54, 54)


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of run and what came of it."""

    verdict: Verdict
    took_s: float
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the run could be made and the diagnosis of it is right."""
        return not self.error and not self.verdict.misses

    def __str__(self) -> str:
        truth, said = self.verdict.truth, self.verdict.said
        stated = "nothing is wrong"
        if truth is not None:
            stated = _words(truth.stage, truth.host, truth.phase, truth.cause)
        told = "nothing"
        if said is not None:
            told = _words(said.stage, said.host, said.phase, said.cause)
        verdict = self.error or ", ".join(self.verdict.misses) or "right"
        cells = (self.verdict.name, stated, told)
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True))
        return f"{line}  {verdict}"


def main() -> int:
    """Run the kinds that the command line names, or all."""
    parser = argparse.ArgumentParser(description="Make broken runs and judge their diagnosis.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="only these (default: all)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at once (2)")
    parser.add_argument("--record", action="store_true", help="keep the bundles in tests/data/runs")
    args = parser.parse_args()
    chosen = tuple(args.kinds) or names()
    print("  ".join(t.ljust(w) for t, w in zip(("kind", "truth", "said"), WIDTHS, strict=True)))
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        ThreadPoolExecutor(args.jobs) as pool,
    ):
        rows = []
        for row in pool.map(lambda name: one(name, Path(folder), keep=args.record), chosen):
            print(row, flush=True)
            rows.append(row)
    wrong = [row.verdict.name for row in rows if not row.is_right]
    print(f"{len(rows) - len(wrong)} of {len(rows)} right" + (f"; wrong: {wrong}" if wrong else ""))
    return 1 if wrong else 0


def one(name: str, folder: Path, *, keep: bool) -> Row:
    """Make one run and judge its bundle."""
    begun_s = time.monotonic()
    try:
        with made(name, folder / name) as bundle:
            if keep:
                bundle = record(name, bundle, folder / name)
            verdict = judge(name, bundle)
    except Exception as error:  # noqa: BLE001 - a run that cannot be made is a line of the table
        text = f"not made: {type(error).__name__}: {str(error)[:200]}"
        return Row(Verdict(name, None, None), time.monotonic() - begun_s, text)
    return Row(verdict, time.monotonic() - begun_s)


def _words(stage: int | None, host: str, phase: str, cause: str) -> str:
    place = "the run" if stage is None else f"{stage} {host}"
    return f"{place}, {phase}: {cause}" if phase else f"{place}: {cause}"


if __name__ == "__main__":
    sys.exit(main())
