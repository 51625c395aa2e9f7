"""Load a server of two stages on this machine, kill stages meanwhile, and print what became of it.

Usage: ``python -m tools.serve_load [--clients N] [--seconds S] [--kill-every-s S]``. Half of the
clients behave; the others read slowly, send slowly, vanish in mid-stream or send garbage. The
stages are stubs whose answers are hashes of all that they were sent. Exit 1: something is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.serve_load import MIB, Load, play

_SHARES = (0.5, 0.9, 0.99, 1.0)
_FLAT_BYTES = 12 * MIB


def wrongs(load: Load) -> list[str]:
    """Return what is wrong with what became of a load, a sentence each; none: all is well."""
    _, middle, end = load.rss_bytes
    before, after = load.channels
    checks = (
        (load.kills > 0, "no stage was killed"),
        (bool(load.tally.total_s), "nothing was answered"),
        (end - middle < _FLAT_BYTES, f"it grew by {end - middle} bytes in the second half"),
        (after <= before, f"it holds {after} pipes and sockets, and held {before}"),
        (load.sessions == [0, 0], f"the workers hold {load.sessions} caches, not none"),
        ("Traceback" not in load.stderr, f"it told of an error of its own: {load.stderr}"),
        ("never retrieved" not in load.stderr, f"a task was lost: {load.stderr}"),
    )
    return [*load.tally.faults, *(text for is_right, text in checks if not is_right)]


def table(load: Load) -> str:
    """Return what became of a load, as Markdown."""
    tally = load.tally
    lines = ["| client | end | requests |", "|---|---|---:|"]
    lines += [f"| {kind} | {how} | {n} |" for (kind, how), n in sorted(tally.ended.items())]
    lines += ["", "| seconds | 50% | 90% | 99% | most |", "|---|---:|---:|---:|---:|"]
    for name, values in (("to the first text", tally.ttft_s), ("whole answer", tally.total_s)):
        lines.append(f"| {name} | {' | '.join(f'{one:.2f}' for one in _percentiles(values))} |")
    rss = ", ".join(f"{value / MIB:.1f}" for value in load.rss_bytes)
    lines += [
        "",
        f"stages killed: {load.kills}",
        f"resident MiB of the server before, half way, at the end: {rss}",
        f"its pipes and sockets before and after: {load.channels[0]}, {load.channels[1]}",
        f"KV caches left on the stages: {', '.join(map(str, load.sessions))}",
    ]
    return "\n".join(lines)


def _percentiles(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[int(share * (len(ordered) - 1))] for share in _SHARES] if ordered else []


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description="load a server of stub stages")
    parser.add_argument("--clients", type=int, default=200, metavar="N")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S")
    parser.add_argument("--kill-every-s", type=float, default=5.0, metavar="S")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stageline-load-") as folder:
        load = play(Path(folder), options.clients, options.seconds, options.kill_every_s)
    print(table(load))
    found = wrongs(load)
    print(f"wrong: {len(found)}", *found[:20], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
