"""How long to keep asking a hub that does not answer well, and how long to wait in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from huggingface_hub import constants
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

_STALL_S = 30.0


def _stall_s() -> float:
    """Return what the user set; huggingface_hub's own default is short for a slow line."""
    asked_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
    return _STALL_S if asked_s == constants.DEFAULT_DOWNLOAD_TIMEOUT else float(asked_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """When a fetch is given up.

    Attributes:
        connections: how many requests at once.
        connect_s: for one connection to be made.
        head_s: for the answer to a question about a file; HF_HUB_ETAG_TIMEOUT.
        stall_s: without a byte, or with fewer than `slowest_bytes_per_s`, before a connection is
            given up for another; HF_HUB_DOWNLOAD_TIMEOUT where that is set.
        slowest_bytes_per_s: the slowest rate that counts as alive.
        attempts: failures in a row without progress before the fetch fails.
        progress_bytes: how much one request must bring for the failures before to be forgotten.
        first_delay_s, longest_delay_s: the wait after the first failure, which doubles with each
            further one, and its bound.
        longest_retry_after_s: the longest wait that the hub may ask for.
        redirects: the longest chain that is followed.
    """

    connections: int = 4
    connect_s: float = 10.0
    head_s: float = field(default_factory=lambda: float(constants.HF_HUB_ETAG_TIMEOUT))
    stall_s: float = field(default_factory=_stall_s)
    slowest_bytes_per_s: float = 1024.0
    attempts: int = 6
    progress_bytes: int = 64 * 1024
    first_delay_s: float = 0.5
    longest_delay_s: float = 20.0
    longest_retry_after_s: float = 300.0
    redirects: int = 10


class Attempts:
    """The failures in a row of one fetch. For one thread.

    `draw` gives the jitter, a number from [0, 1): hosts that failed together must not come
    back together.
    """

    def __init__(self, limits: FetchLimits, draw: Callable[[], float] = random.random) -> None:
        self.failures = 0
        self._limits = limits
        self._draw = draw
        self._gained_bytes = 0

    def gained(self, num_bytes: int) -> None:
        """Note that bytes came; enough since the last failure, and those before are forgotten."""
        self._gained_bytes += num_bytes
        if self._gained_bytes >= self._limits.progress_bytes:
            self.failures = 0

    def failed(self, asked_s: float | None = None) -> float | None:
        """Note a failure and return how many seconds to wait; None: give up.

        The wait doubles with each failure up to its bound, and is then cut by up to a half;
        where the hub asked to wait `asked_s`, it is at least that.
        """
        self.failures += 1
        self._gained_bytes = 0
        if self.failures >= self._limits.attempts:
            return None
        doubled_s = self._limits.first_delay_s * 2.0 ** min(self.failures - 1, 64)
        delay_s = min(doubled_s, self._limits.longest_delay_s) * (1 - self._draw() / 2)
        return max(delay_s, asked_s or 0.0)


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return how many seconds an answer asks to wait; None where it does not say.

    From `Retry-After` (seconds or an HTTP date, which is read against the answer's own `Date`
    where it has one, as this host's clock may be wrong), else from the hub's `RateLimit`.
    `headers` has names in lower case; `now` is this host's time, with a time zone.
    Source: RFC 9110, 10.2.3; draft-ietf-httpapi-ratelimit-headers-09.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:18])
    then = _date(value)
    if then is not None:
        return max(0.0, (then - (_date(headers.get("date", "")) or now)).total_seconds())
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    return None


def _date(value: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(value)
    except (ValueError, OverflowError, IndexError, TypeError):  # no date, whatever it is
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
