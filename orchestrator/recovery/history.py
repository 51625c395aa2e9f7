"""What each stage was sent for the requests that live, chunk by chunk, to be sent again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.chunk import Chunk
from worker.protocol.ops import HiddenReply, RequestId


@dataclass(frozen=True, slots=True)
class Entry:
    """One chunk that a stage has worked on.

    Attributes:
        hidden: what the stage before it gave; None on the first stage, and where it was dropped
            to keep the bound.
    """

    chunk: Chunk
    hidden: HiddenReply | None

    @property
    def size_bytes(self) -> int:
        """Bytes of its hidden states, as they cross the wire."""
        return 0 if self.hidden is None else len(self.hidden.hidden_b64)


@dataclass(slots=True)
class _Request:
    """Entries of each stage, by position.

    Attributes:
        thin: whether no hidden states are kept any more.
        rests: whether nobody asks for it at present.
        rebuilt: whether a stage had freed its cache, since it rested last.
    """

    stages: tuple[list[Entry], ...]
    thin: bool = False
    held_bytes: int = 0
    rests: bool = False
    rebuilt: bool = False


class History:
    """The inputs of every stage and live request, in the very chunks they were sent.

    Token ids and boundaries are always kept. Hidden states are kept up to a bound; over it those
    of the largest request go, all at once, as a part of them would be of no use. Requests that
    rest go first.

    Args:
        num_stages: stages of the pipeline.
        limit_bytes: bound of all hidden states together.

    Attributes:
        held_bytes: hidden states held now.
        peak_bytes: the most that was ever held.
    """

    def __init__(self, num_stages: int, limit_bytes: int) -> None:
        self.held_bytes = 0
        self.peak_bytes = 0
        self._num_stages = num_stages
        self._limit_bytes = limit_bytes
        self._requests: dict[RequestId, _Request] = {}

    def add(self, stage: int, rid: RequestId, chunk: Chunk, hidden: HiddenReply | None) -> None:
        """Note that a stage has answered a chunk, which follows the law of positions.

        Chunks from its position on are forgotten. One that begins before and ends after it stays
        whole: its boundaries decided bits, and the stage crops in the replay as it did then.
        """
        request = self._of(rid)
        entries = request.stages[stage]
        while entries and entries[-1].chunk.position >= chunk.position:
            self._count(request, -entries.pop().size_bytes)
        if hidden is None or request.thin:
            entries.append(Entry(chunk, None))
            return
        entries.append(Entry(chunk, hidden))
        self._count(request, len(hidden.hidden_b64))
        while self.held_bytes > self._limit_bytes:
            self._thin(max(self._requests.values(), key=_dispensable))
        if self.held_bytes > self.peak_bytes:
            self.peak_bytes = self.held_bytes

    def keep_thin(self, rid: RequestId) -> None:
        """Keep no hidden states of a request."""
        self._thin(self._of(rid))

    def forget(self, rid: RequestId) -> None:
        """Drop all that is known of a request."""
        request = self._requests.pop(rid, None)
        if request is not None:
            self.held_bytes -= request.held_bytes

    def rest(self, rid: RequestId) -> None:
        """Hear that nobody asks for a request any more, but that its caches are kept."""
        self._of(rid).rests = True

    def wake(self, rid: RequestId) -> None:
        """Hear that a request which rested is asked for again."""
        request = self._of(rid)
        request.rests = request.rebuilt = False

    def forget_resting(self) -> None:
        """Drop all that rest: a stage that is lost need not be sent them again."""
        for rid in [rid for rid, request in self._requests.items() if request.rests]:
            self.forget(rid)

    def note_rebuilt(self, rid: RequestId) -> None:
        """Hear that a stage had freed a request's cache, and is sent all of it again."""
        self._of(rid).rebuilt = True

    def was_rebuilt(self, rid: RequestId) -> bool:
        """Tell whether a stage had freed its cache since the request woke."""
        request = self._requests.get(rid)
        return request is not None and request.rebuilt

    def has(self, rid: RequestId) -> bool:
        """Tell whether anything is known of a request."""
        return rid in self._requests

    def bytes_of(self, rid: RequestId) -> int:
        """Return the hidden states held for a request."""
        request = self._requests.get(rid)
        return 0 if request is None else request.held_bytes

    def rids(self, stage: int) -> list[RequestId]:
        """Return the requests that have a KV cache on a stage, oldest first."""
        return [rid for rid, request in self._requests.items() if request.stages[stage]]

    def entries(self, stage: int, rid: RequestId) -> Sequence[Entry]:
        """Return what a stage was sent for a request, in order."""
        request = self._requests.get(rid)
        return () if request is None else tuple(request.stages[stage])

    def positions(self, stage: int) -> int:
        """Return how many positions the KV caches of a stage hold together."""
        held = (request.stages[stage] for request in self._requests.values())
        return sum(entries[-1].chunk.end for entries in held if entries)

    def _of(self, rid: RequestId) -> _Request:
        request = self._requests.get(rid)
        if request is None:
            request = _Request(tuple([] for _ in range(self._num_stages)))
            self._requests[rid] = request
        return request

    def _thin(self, request: _Request) -> None:
        request.thin = True
        for entries in request.stages:
            entries[:] = [replace(entry, hidden=None) for entry in entries]
        self._count(request, -request.held_bytes)

    def _count(self, request: _Request, more_bytes: int) -> None:
        request.held_bytes += more_bytes
        self.held_bytes += more_bytes


def _dispensable(request: _Request) -> tuple[bool, int]:
    """Return how well a request can do without hidden states."""
    return request.rests and request.held_bytes > 0, request.held_bytes
