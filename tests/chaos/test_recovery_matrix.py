"""Whatever is done to whichever stage at whatever moment, every token is that of a quiet run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from orchestrator.links.names import CHAIN
from tests.support.recovery_matrix import history_bench, play_matrix, table
from worker.links import Links


@pytest.mark.timeout(200)
def test_no_fault_changes_a_token() -> None:
    outcomes = asyncio.run(play_matrix(history_bench()))
    bad = [cell.name for cell, outcome in outcomes.items() if not outcome.is_good]
    assert (len(outcomes), bad) == (4 * 3 * 4 * 2 * 2, []), table(outcomes)


@pytest.mark.skipif(not Links().capabilities, reason="openssl is not here")
@pytest.mark.timeout(200)
def test_nor_does_one_where_stages_hand_straight_on() -> None:
    bench = replace(history_bench(), links=CHAIN)
    # What the star's matrix has beside these is the same over links: nothing is under way.
    outcomes = asyncio.run(
        play_matrix(bench, faults=("kill", "stop"), moments=("prefill", "decode"))
    )
    bad = [cell.name for cell, outcome in outcomes.items() if not outcome.is_good]
    assert (len(outcomes), bad) == (2 * 3 * 2 * 2 * 2, []), table(outcomes)
