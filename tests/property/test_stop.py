"""Stop strings: nothing of a stop is shown, nothing else is lost, however the text is cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.stop import StopFilter

# Few characters, so that stops overlap, nest and nearly match all the time.
TEXT = st.text(alphabet="ab🙂\n", max_size=24)
STOPS = st.lists(st.text(alphabet="ab🙂\n", min_size=1, max_size=5), max_size=4)
CUTS = st.lists(st.integers(0, 24), max_size=10)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop that is completed first, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


def shown_by(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    stop_filter = StopFilter(stops)
    shown = [stop_filter.push(piece) for piece in pieces]
    return [*shown, stop_filter.finish()], stop_filter.matched


@given(TEXT, STOPS, CUTS)
def test_the_text_ends_before_the_stop_completed_first(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    shown, matched = shown_by(stops, pieces_of(text, cuts))
    assert ("".join(shown), matched) == naive(text, stops)


@given(TEXT, STOPS, CUTS)
def test_without_nested_stops_that_is_the_text_up_to_the_earliest_match(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stops = [s for s in stops if not any(other != s and other in s for other in stops)]
    starts = [text.find(stop) for stop in stops if stop in text]
    shown, _ = shown_by(stops, pieces_of(text, cuts))
    assert "".join(shown) == text[: min(starts, default=len(text))]


@given(TEXT, STOPS, CUTS)
def test_no_more_is_held_back_than_could_begin_a_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stop_filter = StopFilter(stops)
    seen = shown = ""
    for piece in pieces_of(text, cuts):
        seen += piece
        shown += stop_filter.push(piece)
        if stop_filter.matched is not None:
            return
        held = seen[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
