"""What a stage fetched of its weights: how many bytes, how fast, and whether it had to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from worker.protocol.events import (
    CacheHit,
    CacheOrphanCleaned,
    DownloadFailed,
    DownloadProgress,
    Event,
    FetchingModel,
    ModelFetched,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFacts:
    """The newest fetch of a stage.

    Attributes:
        state: "hit" (all was here), "fetched", "failed", or "cut" (it has no end).
        total_bytes: what the stage needs, or what it had to fetch where no more is known.
        fetched_bytes: what came over the network, as exactly as the rate tells.
        left_bytes: what an earlier fetch had left, or another worker brought meanwhile.
        elapsed_ms: from the beginning to the newest news.
        mbps: megabytes (10^6) a second.
        reason: why it failed.
        cleaned_bytes: left-overs that were removed.
    """

    state: str = "cut"
    total_bytes: int = 0
    fetched_bytes: int = 0
    left_bytes: int = 0
    elapsed_ms: float = 0.0
    mbps: float = 0.0
    reason: str | None = None
    cleaned_bytes: int = 0

    @property
    def is_telling(self) -> bool:
        """Whether more is known than that the weights were there at the end."""
        return self.state in ("hit", "failed") or self.elapsed_ms > 0 or self.cleaned_bytes > 0


def fetch_among(told: Iterable[Event]) -> FetchFacts | None:
    """Return what a worker's events tell of its newest fetch; None where they tell nothing."""
    facts: FetchFacts | None = None
    for event in told:
        facts = None if isinstance(event, FetchingModel) else _after(facts, event)
    return facts


def _after(facts: FetchFacts | None, event: Event) -> FetchFacts | None:
    known = facts or FetchFacts()
    match event:
        case CacheHit(bytes_total=total_bytes):
            return replace(known, state="hit", total_bytes=total_bytes)
        case CacheOrphanCleaned(bytes_freed=freed_bytes):
            return replace(known, cleaned_bytes=known.cleaned_bytes + freed_bytes)
        case DownloadProgress():
            # The rate leaves out what was here before; the bytes that are done do not.
            came_bytes = event.bytes_fetched
            if came_bytes is None:
                came_bytes = min(event.bytes_done, round(event.mbps * event.elapsed_ms * 1e3))
            return replace(
                known,
                total_bytes=event.bytes_total,
                fetched_bytes=came_bytes,
                left_bytes=max(0, event.bytes_done - came_bytes),
                elapsed_ms=event.elapsed_ms,
                mbps=event.mbps,
            )
        case DownloadFailed(reason=reason):
            return replace(known, state="failed", reason=reason)
        case ModelFetched(bytes_total=total_bytes):
            # A hit is told before it: nothing had to come.
            state = "hit" if known.state == "hit" else "fetched"
            return replace(known, state=state, total_bytes=total_bytes)
    return facts
