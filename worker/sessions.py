"""KV caches by request_id, and the law of positions.

`position` is the absolute index of a message's first token. Equal to the cached length: append.
Below it: crop first. 0: start anew. Above it: refuse and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from worker.backends.base import CannotCrop, KVCache
from worker.protocol.ops import RequestId
from worker.protocol.schema import ErrorCode, ProtocolError


@dataclass(slots=True)
class Session:
    """One request's cache.

    Attributes:
        cache: keys, values and states of this stage's layers.
        batch: sequences it holds.
        mask: uint8 [batch, length] as one bytes object per sequence; None: nothing is padded.
        size_bytes: the cache's size after the last op.
    """

    cache: KVCache
    batch: int
    mask: tuple[bytes, ...] | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """What one op may use of a session.

    Attributes:
        session: with the cache to fill.
        mask: of everything so far and of the op itself.
        was: the cache's state and the mask before the op; None for a new session.
    """

    session: Session
    mask: tuple[bytes, ...] | None
    was: tuple[Any, tuple[bytes, ...] | None] | None = None


class Sessions:
    """Every session of a worker, bounded in number and bytes.

    Args:
        new_cache: opens an empty cache for a batch.
        max_sessions: how many there may be.
        budget_bytes: how much they may hold together; None: no bound.
        on_evict: told about each session that was freed because memory was short.
    """

    def __init__(
        self,
        new_cache: Callable[[int], KVCache],
        max_sessions: int,
        budget_bytes: int | None,
        on_evict: Callable[[RequestId, int], None],
    ) -> None:
        self._new_cache = new_cache
        self._max_sessions = max_sessions
        self._budget_bytes = budget_bytes
        self._on_evict = on_evict
        self._by_id: dict[RequestId, Session] = {}  # Least recently used first.
        self._held_bytes = 0

    @property
    def held(self) -> tuple[int, int]:
        """Bytes of all caches, and how many there are; safe to read from another thread."""
        return self._held_bytes, len(self._by_id)

    def enter(
        self, request_id: RequestId, position: int, batch: int, seq_len: int, mask: bytes | None
    ) -> Turn:
        """Apply the law of positions and return what the op may use.

        An op ends in `commit` or in `undo`. A new session is not held before `commit`, so an op
        that fails leaves the old one.

        Args:
            request_id: names the session.
            position: index of the first new column.
            batch: sequences of the message.
            seq_len: columns of the message.
            mask: uint8 [batch, seq_len] of the message, or None.

        Raises:
            ProtocolError: `no_session`, `bad_position`, or `bad_field` for another batch.
        """
        if position == 0:
            session = Session(self._new_cache(batch), batch)
            return Turn(session, _extended(None, 0, batch, seq_len, mask))
        session = self._existing(request_id, position, batch)
        was = (session.cache.snapshot(position), session.mask)
        if position < session.cache.length:
            self._crop(session, position)
        return Turn(session, _extended(session.mask, position, batch, seq_len, mask), was)

    def undo(self, turn: Turn) -> None:
        """Leave everything as it was before the op."""
        if turn.was is not None:
            state, turn.session.mask = turn.was
            turn.session.cache.restore(state)

    def commit(self, *turns: tuple[RequestId, Turn]) -> None:
        """Hold what the ops have done, as the most recently used; free others where too much."""
        for request_id, turn in turns:
            session = turn.session
            old = self._by_id.pop(request_id, None)
            if old is not None:
                self._held_bytes -= old.size_bytes
            session.mask = turn.mask
            session.size_bytes = session.cache.size_bytes
            self._by_id[request_id] = session
            self._held_bytes += session.size_bytes
        while len(self._by_id) > 1 and self._is_over():
            oldest = next(iter(self._by_id))
            freed_bytes = self._by_id[oldest].size_bytes
            self.release(oldest)
            self._on_evict(oldest, freed_bytes)

    def release(self, request_id: RequestId) -> bool:
        """Free a session; tell whether there was one."""
        session = self._by_id.pop(request_id, None)
        if session is None:
            return False
        self._held_bytes -= session.size_bytes
        return True

    def _is_over(self) -> bool:
        budget_bytes = self._budget_bytes
        return len(self._by_id) > self._max_sessions or (
            budget_bytes is not None and self._held_bytes > budget_bytes
        )

    def _existing(self, request_id: RequestId, position: int, batch: int) -> Session:
        session = self._by_id.get(request_id)
        if session is None:
            raise ProtocolError(
                ErrorCode.NO_SESSION,
                f"position is {position} but this request_id has no KV cache here (never opened, "
                "released, or freed for memory): start again at position 0",
            )
        if position > session.cache.length:
            raise ProtocolError(
                ErrorCode.BAD_POSITION,
                f"position {position} is past the {session.cache.length} cached positions: "
                f"give at most {session.cache.length}, or start again at 0",
            )
        if batch != session.batch:
            raise ProtocolError(
                ErrorCode.BAD_FIELD,
                f"batch is {batch}, this request's KV cache holds {session.batch}: give the same "
                "batch, or start again at position 0",
            )
        return session

    def _crop(self, session: Session, position: int) -> None:
        length = session.cache.length
        try:
            session.cache.crop(position)
        except CannotCrop as error:
            raise ProtocolError(
                ErrorCode.BAD_POSITION,
                f"this model's state cannot go back from {length} to position {position} "
                f"({error}): start again at position 0",
            ) from None
        session.mask = session.mask and tuple(row[:position] for row in session.mask)


def _extended(
    held: tuple[bytes, ...] | None, position: int, batch: int, seq_len: int, mask: bytes | None
) -> tuple[bytes, ...] | None:
    """Append a message's mask; where one of both is missing it is ones."""
    if held is None and mask is None:
        return None
    before = held or (b"\1" * position,) * batch
    new = mask if mask is not None else b"\1" * (batch * seq_len)
    return tuple(row + new[i * seq_len : (i + 1) * seq_len] for i, row in enumerate(before))
