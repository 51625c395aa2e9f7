"""Many clients at once, half of them ill-behaved, and stages that are killed: nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.serve_load import play
from tools.serve_load import table, wrongs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_200_clients_get_their_own_answers_or_are_told_to_come_again(tmp_path: Path) -> None:
    load = play(tmp_path, num_clients=200, duration_s=15, kill_every_s=3)
    print(table(load))
    assert wrongs(load) == []
    assert {how for _, how in load.tally.ended} == {"answered", "refused", "gone", "429"}
