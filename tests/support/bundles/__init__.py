"""The recorded bundles of tests/data/bundles: `python -m tests.support.bundles` rewrites them.

Each is a run of two stages, written by the product's own writer and codec, with one thing that
went wrong. A new rule of the diagnosis gets a function here and a row in the test of the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.bundles.losses import (
    crashed,
    garbage,
    hung,
    killed_for_memory,
    killed_remote_neighbour,
    killed_worker,
    op_refused,
    uncaught,
)
from tests.support.bundles.run import Run
from tests.support.bundles.runs import (
    clock_off,
    finished,
    interrupted,
    killed_at_the_end,
    killed_orchestrator,
    newer_version,
    recovered,
    slow_link,
    slow_stage,
)
from tests.support.bundles.starts import (
    cache_damaged,
    download_failed,
    load_failed,
    memory_refused,
    never_ready,
    spawn_failed,
    unreachable,
    version_mismatch,
)

__all__ = ["CASES", "RECORDED", "Run", "finished", "killed_worker"]

RECORDED = Path(__file__).parents[2] / "data" / "bundles"

CASES: dict[str, Callable[[Run], None]] = {
    case.__name__: case
    for case in (
        finished,
        killed_worker,
        killed_for_memory,
        killed_remote_neighbour,
        hung,
        load_failed,
        memory_refused,
        download_failed,
        uncaught,
        unreachable,
        spawn_failed,
        version_mismatch,
        garbage,
        never_ready,
        crashed,
        op_refused,
        killed_orchestrator,
        interrupted,
        killed_at_the_end,
        cache_damaged,
        slow_stage,
        slow_link,
        clock_off,
        recovered,
        newer_version,
    )
}
