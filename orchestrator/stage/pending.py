"""Ops that wait for their replies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from worker.protocol.ops import Ping, Reply, Request, RequestId

NEVER_S = float("inf")


@dataclass(slots=True)
class PendingOp:
    """One op on its way. The future is done early when the caller stopped waiting.

    Attributes:
        late_s: when it has waited for too long, by the clock of the event loop.
    """

    request: Request[Any]
    future: asyncio.Future[Reply]
    sent_bytes: int
    late_s: float = NEVER_S
    wall_ms: float = field(default_factory=lambda: time.time_ns() / 1e6)
    started_s: float = field(default_factory=time.perf_counter)

    @property
    def duration_ms(self) -> float:
        """Milliseconds since the op was handed to the pipe."""
        return (time.perf_counter() - self.started_s) * 1e3


class PendingOps:
    """Match replies to ops: a worker answers the ops of one request_id in their order.

    An op whose caller went away stays here until its reply has come, so that the next reply of
    the same request is not taken for it.
    """

    def __init__(self) -> None:
        # Lists, for hardly any is longer than one; an id without an op on its way has none.
        self._by_id: dict[RequestId, list[PendingOp]] = {}
        self._oldest_first: dict[int, PendingOp] = {}

    def add(self, op: PendingOp) -> None:
        """Expect a reply."""
        waiting = self._by_id.get(op.request.request_id)
        if waiting is None:
            self._by_id[op.request.request_id] = [op]
        else:
            waiting.append(op)
        self._oldest_first[id(op)] = op

    def take(self, request_id: RequestId) -> PendingOp | None:
        """Return the op that a reply belongs to; None when nothing was asked."""
        waiting = self._by_id.get(request_id)
        if not waiting:
            return None
        op = waiting.pop(0)
        if not waiting:
            del self._by_id[request_id]
        del self._oldest_first[id(op)]
        return op

    def count_of(self, request_id: RequestId) -> int:
        """Return how many ops of one request_id are in flight."""
        return len(self._by_id.get(request_id, ()))

    @property
    def oldest(self) -> PendingOp | None:
        """The op that has been in flight for longest, pings aside."""
        ops = self._oldest_first.values()
        return next((op for op in ops if not isinstance(op.request, Ping)), None)

    @property
    def in_flight(self) -> Iterable[PendingOp]:
        """The ops that have no reply yet, oldest first."""
        return self._oldest_first.values()

    @property
    def sent_bytes(self) -> int:
        """What was sent of all ops in flight; some of it may be on its way still."""
        return sum(op.sent_bytes for op in self._oldest_first.values())

    def put_back(self, op: PendingOp) -> None:
        """Undo `take`: the reply was none."""
        self._by_id.setdefault(op.request.request_id, []).insert(0, op)
        self._oldest_first = {id(op): op, **self._oldest_first}

    def fail_all(self, error: Exception, *, forget: bool = True) -> None:
        """End every wait with the error.

        Args:
            error: what the callers get.
            forget: whether no reply will come any more.
        """
        for op in self._oldest_first.values():
            if not op.future.done():
                op.future.set_exception(error)
        if forget:
            self._by_id.clear()
            self._oldest_first.clear()
