"""Stop strings: the cases that people meet."""

from __future__ import annotations

import pytest

from orchestrator.stop import StopFilter


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "matched"),
    [
        (["own fox"], ["the br", "own", " f", "ox jumps"], ["the br", "", "", "", ""], "own fox"),
        (["own fox"], ["own", " f", "ish"], ["", "", "own fish", ""], None),
        (["###", "\n\n"], ["a\n", "b##", "\n\n"], ["a", "\nb", "##", ""], "\n\n"),
        (["longer than the answer"], ["long"], ["", "long"], None),
        (["は"], ["こんにちは。"], ["こんにち", ""], "は"),
        ([], ["a", ""], ["a", "", ""], None),
    ],
    ids=["cut over tokens", "nearly", "two stops", "longer", "unicode", "none"],
)
def test_pieces_shown(
    stops: list[str], pieces: list[str], shown: list[str], matched: str | None
) -> None:
    stop_filter = StopFilter(stops)
    got = [stop_filter.push(piece) for piece in pieces]
    assert ([*got, stop_filter.finish()], stop_filter.matched) == (shown, matched)


def test_nothing_is_shown_after_a_match() -> None:
    stop_filter = StopFilter(["x"])
    stop_filter.push("axb")
    assert (stop_filter.push("c"), stop_filter.finish()) == ("", "")


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="a stop string is empty"):
        StopFilter(["a", ""])
