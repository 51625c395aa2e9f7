"""How long a failing hub is asked: bounded, growing, and no less than the hub wants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import huggingface_hub.constants
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.weights.retry import Attempts, FetchLimits, retry_after_s

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
limits = st.builds(
    FetchLimits,
    attempts=st.integers(1, 50),
    progress_bytes=st.integers(1, 10_000),
    first_delay_s=st.floats(0.001, 10),
    longest_delay_s=st.floats(0.001, 100),
)
draws = st.floats(0, 1, exclude_max=True)


@given(limits, draws)
def test_a_hub_that_brings_nothing_is_given_up_after_the_attempts(
    limits: FetchLimits, draw: float
) -> None:
    attempts = Attempts(limits, lambda: draw)
    waits_s = [attempts.failed() for _ in range(limits.attempts)]
    assert waits_s[-1] is None and None not in waits_s[:-1]
    for number, wait_s in enumerate(waits_s[:-1]):
        most_s = min(limits.first_delay_s * 2**number, limits.longest_delay_s)
        assert wait_s is not None and most_s / 2 <= wait_s <= most_s


@given(limits, st.lists(st.integers(0, 20_000)))
def test_failures_count_only_until_a_request_brings_enough(
    limits: FetchLimits, brought: list[int]
) -> None:
    attempts, in_a_row = Attempts(limits), 0
    for num_bytes in brought:
        attempts.gained(num_bytes // 2)
        attempts.gained(num_bytes - num_bytes // 2)
        in_a_row = 1 if num_bytes >= limits.progress_bytes else in_a_row + 1
        assert (attempts.failed() is None, attempts.failures) == (
            in_a_row >= limits.attempts,
            in_a_row,
        )


@given(limits, draws, st.floats(0, 1000))
def test_the_hub_is_not_asked_sooner_than_it_wants(
    limits: FetchLimits, draw: float, asked_s: float
) -> None:
    wait_s = Attempts(limits, lambda: draw).failed(asked_s)
    plain_s = Attempts(limits, lambda: draw).failed()
    assert wait_s == (None if plain_s is None else max(plain_s, asked_s))


@given(st.integers(0, 10**9), st.timedeltas(timedelta(days=-999), timedelta(days=999)))
def test_seconds_and_dates_say_the_same(seconds: int, wrong_clock: timedelta) -> None:
    then = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    date = format_datetime(NOW, usegmt=True)
    asked = [
        retry_after_s({"retry-after": f" {seconds} "}, NOW),
        retry_after_s({"retry-after": then}, NOW),
        retry_after_s({"retry-after": then, "date": date}, NOW + wrong_clock),
        retry_after_s({"ratelimit": f'"api";r=0;t={seconds}'}, NOW),
    ]
    assert asked == [float(seconds)] * 4


@given(st.text(), st.text(), st.text())
def test_what_cannot_be_read_asks_for_no_time_or_some(after: str, date: str, limit: str) -> None:
    headers = {"retry-after": after, "date": date, "ratelimit": limit}
    assert (retry_after_s(headers, NOW) or 0.0) >= 0.0


@pytest.mark.parametrize(
    ("headers", "asked_s"),
    [
        ({}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sun, 29 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"ratelimit": '"api";r=7;t=55'}, None),
        ({"retry-after": "9" * 400}, 999999999999999999.0),
    ],
)
def test_what_an_answer_asks(headers: dict[str, str], asked_s: float | None) -> None:
    assert retry_after_s(headers, NOW) == asked_s


def test_huggingface_hub_s_timeouts_count_where_they_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = FetchLimits()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 77)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_ETAG_TIMEOUT", 5)
    asked = FetchLimits()
    assert (plain.connect_s, plain.stall_s, plain.attempts) == (10.0, 30.0, 6)
    assert (asked.head_s, asked.stall_s) == (5.0, 77.0)
