"""Which KV caches are kept: bookkeeping alone, nothing is sent from here."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.prefixes.canon import Pieces, shared
from worker.protocol.ops import RequestId


@dataclass(slots=True)
class Pool:
    """Caches that requests use, and those that wait for one that begins as theirs did.

    A name has one user at most. What is over a bound goes, the least recently used first.

    Attributes:
        most_caches: used and waiting ones together; those in use are never too many.
        most_positions: of those that wait.
        idle: pieces of each that waits, the least recently used first.
        taken: names that are in use.
        freeing: names that are nobody's, but are known to the stages still.
    """

    most_caches: int
    most_positions: int
    idle: dict[RequestId, Pieces] = field(default_factory=dict)
    taken: set[RequestId] = field(default_factory=set)
    freeing: set[RequestId] = field(default_factory=set)

    @property
    def positions(self) -> int:
        """Positions in the caches that wait."""
        return sum(pieces[-1].end for pieces in self.idle.values())

    def take(self, wanted: Pieces) -> tuple[RequestId, int] | None:
        """Give the cache that saves most of `wanted`, and how many positions; None if none does.

        One that would lose more than it saves is left to the chat that it is of.
        """
        best: tuple[RequestId, int] | None = None
        for name, pieces in self.idle.items():
            length = shared(pieces, wanted)
            if length and 2 * length >= pieces[-1].end and (best is None or length >= best[1]):
                best = name, length
        if best is not None:
            del self.idle[best[0]]
            self.taken.add(best[0])
        return best

    def begin(self, wished: RequestId) -> RequestId:
        """Give a name that nobody uses: the wished one, or one made of it."""
        name, number = wished, 1
        while name in self.taken or name in self.idle or name in self.freeing:
            number += 1
            name = f"{wished}~{number}"
        self.taken.add(name)
        return name

    def keep(self, name: RequestId, pieces: Pieces) -> None:
        """Let a cache wait that was in use."""
        self.taken.remove(name)
        self.idle[name] = pieces

    def drop(self, name: RequestId) -> None:
        """Give up a cache that waits or was in use; nobody gets its name until `end`."""
        self.idle.pop(name, None)
        self.taken.discard(name)
        self.freeing.add(name)

    def end(self, name: RequestId) -> None:
        """Hear that a cache is freed."""
        self.freeing.discard(name)

    def surplus(self) -> list[RequestId]:
        """Give up what is over the bounds; return the names, to be freed."""
        dropped: list[RequestId] = []
        positions = self.positions
        while self.idle and (
            len(self.idle) + len(self.taken) > self.most_caches or positions > self.most_positions
        ):
            oldest = next(iter(self.idle))
            positions -= self.idle[oldest][-1].end
            self.drop(oldest)
            dropped.append(oldest)
        return dropped
