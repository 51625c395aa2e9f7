"""Whatever is done to whichever stage at whatever moment, every token is that of a quiet run."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.recovery_matrix import history_bench, play_matrix, table


@pytest.mark.timeout(200)
def test_no_fault_changes_a_token() -> None:
    outcomes = asyncio.run(play_matrix(history_bench()))
    bad = [cell.name for cell, outcome in outcomes.items() if not outcome.is_good]
    assert (len(outcomes), bad) == (4 * 3 * 4 * 2 * 2, []), table(outcomes)
