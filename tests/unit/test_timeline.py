"""What a timeline says follows from the spans in which the stages computed."""

from __future__ import annotations

import pytest

from orchestrator.bundle.spans import OpSpan
from tools.bench.timeline import same_tokens
from tools.bench.timeline_page import page_of
from tools.bench.timeline_take import Idle, Take, idle_in, merged
from tools.bench.timeline_text import close_up, middle, picture, table
from worker.protocol.events import Op


def span(stage: int, start_ms: float, end_ms: float, rows: int = 1) -> OpSpan:
    took_ms = end_ms - start_ms
    event = Op(
        op="forward_range" if rows > 1 else "together",
        duration_ms=took_ms,
        idle_ms_before=0,
        ok=True,
        in_bytes=1,
        out_bytes=1,
        seq_len=rows,
    )
    return OpSpan(stage, start_ms, took_ms, event)


def take(begin_ms: float = 1000.0, slower: float = 1.0) -> Take:
    """Return a prompt of 40 ms in two pieces, then two tokens of 30 ms, on two stages."""
    told = [(0, 0, 10, 8), (1, 10, 20, 8), (0, 10, 20, 8), (1, 20, 40, 8)]
    told += [(0, 45, 55, 1), (1, 55, 70, 1), (0, 75, 85, 1), (1, 85, 100, 1)]
    spans = (
        span(stage, begin_ms + slower * a, begin_ms + slower * b, rows)
        for stage, a, b, rows in told
    )
    ends = (begin_ms + slower * 40, begin_ms + slower * 100)
    return Take(begin_ms, *ends, tuple(spans), 3)


def test_stretches_that_touch_are_one() -> None:
    assert merged(iter([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (3.0, 4.0)])) == ((0, 4), (5, 6))


def test_a_gap_is_where_nothing_was_computed_also_at_the_ends() -> None:
    busy = ((2.0, 4.0), (7.0, 9.0), (20.0, 30.0))
    assert idle_in(busy, 0.0, 10.0) == Idle(0.4, 2.0, 3.0)
    assert idle_in(busy, 21.0, 29.0) == Idle(1.0, 0.0, 0.0)
    assert idle_in((), 0.0, 5.0) == Idle(0.0, 5.0, 5.0)


def test_a_take_is_measured_by_its_requests_and_by_the_rows_of_the_last_stage() -> None:
    found = take()
    assert (found.prompt_ms, found.whole_ms, found.tokens_per_s) == (40, 100, 30)
    assert found.decode_tokens_per_s == pytest.approx(2 / 0.06)
    assert found.busy(1) == ((1010, 1040), (1055, 1070), (1085, 1100))


def test_a_column_is_as_high_as_its_share_and_idle_time_is_a_dot() -> None:
    assert picture(take(), 1000.0, 20.0, 5) == ["  stage 0 █·▄▂▂", "  stage 1 ▄█▂▄▆"]


def test_the_round_of_median_length_is_drawn_and_decoding_is_looked_at_in_its_middle() -> None:
    takes = {"before": [take(slower=n) for n in (3.0, 1.0, 2.0)], "now": [take(5000.0)]}
    assert middle(takes["before"]).whole_ms == 200
    begins, width_ms = close_up(takes, tokens=1)
    assert width_ms == pytest.approx(60)
    assert begins == {"before": pytest.approx(1110), "now": pytest.approx(5040)}


def test_the_table_has_a_row_for_each_way_and_each_of_its_stages() -> None:
    lines = table({"now": [take(), take(slower=2.0)]}).splitlines()
    assert lines[2] == "| now | 60 (40-80) | 25.0 (16.7-33.3) | 150 (100-200) | 22.5 (15.0-30.0) |"
    assert (
        lines[-1] == "| now | 1 | 75% (75%-75%) | 15 (10-20) | 50% (50%-50%) | 22.5 (15.0-30.0) |"
    )


def test_the_page_loads_nothing_and_has_a_bar_for_each_span() -> None:
    text = page_of({"<b>now": [take()]}, "command\nload")
    assert "<b>now" not in text
    assert not any(word in text for word in ("<script", "http://", "https://", "<img", "<link"))
    # All 8 of the whole, and those of decoding closely.
    assert text.count('<rect class="op"') == 8 + 4


def test_an_answer_that_is_another_among_others_is_told() -> None:
    answers = {"before": {(1, 2)}, "now": {(1, 3)}, "many": {(1, 3)}}
    assert same_tokens(answers)[0] is True
    assert same_tokens({**answers, "many": {(1, 4)}})[0] is False
