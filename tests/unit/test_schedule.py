"""The slow test files are begun first."""

from __future__ import annotations

from pathlib import Path

from tests.support.schedule import BEGUN_FIRST, rank

TESTS = Path(__file__).resolve().parents[1]


def test_the_files_that_are_begun_first_are_there() -> None:
    assert [name for name in BEGUN_FIRST if not (TESTS / name).is_file()] == []


def test_the_slow_files_come_in_their_order_and_all_others_after_them() -> None:
    listed = [rank(TESTS / name) for name in BEGUN_FIRST]
    assert (listed, rank(Path(__file__))) == (list(range(len(BEGUN_FIRST))), len(BEGUN_FIRST))
