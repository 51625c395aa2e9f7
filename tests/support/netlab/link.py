"""What a host's link does to packets."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How one host is connected; the same in both directions.

    Attributes:
        delay_ms: one way; a round trip between two hosts takes twice the sum of both links'.
        jitter_ms: up to so much on top, evenly spread; packets keep their order.
        rate_mbit: megabits per second, 0 is unlimited.
        queue_s: a packet waits at most so long for its turn on a link with a rate; behind that it
            is dropped. A short queue drops early, a long one delays all that is behind.
        loss: probability that a packet is lost.
        outage_s: from now on every packet is lost for so long, as with `up=False`; then it is good.
        up: False loses every packet and tells nobody, as a pulled cable behind a switch does.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    rate_mbit: float = 0.0
    queue_s: float = 0.25
    loss: float = 0.0
    outage_s: float = 0.0
    up: bool = True


class Lane:
    """One direction of a link: when does a packet that enters now leave?"""

    def __init__(self) -> None:
        self._free_s = 0.0
        self._last_s = 0.0

    def leaves_s(self, link: Link, now_s: float, num_bytes: int, draw: random.Random) -> float:
        """Return when a packet of `num_bytes` leaves; infinity where it is lost."""
        if link.loss and draw.random() < link.loss:
            return float("inf")
        at_s = now_s
        if link.rate_mbit:
            begin_s = max(at_s, self._free_s)
            if begin_s - at_s > link.queue_s:
                return float("inf")
            at_s = self._free_s = begin_s + num_bytes * 8 / (link.rate_mbit * 1e6)
        at_s += (link.delay_ms + draw.random() * link.jitter_ms) / 1000
        self._last_s = max(at_s, self._last_s)
        return self._last_s
