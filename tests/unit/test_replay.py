"""A replay leaves nothing behind on the stage that it feeds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from orchestrator.chunk import Chunk
from orchestrator.recovery.history import History
from orchestrator.recovery.replay import Replay, Replayed
from worker.protocol.ops import Release


class Fed:
    """In place of a stage: keeps what it is sent, and ends a request at a moment."""

    failure = None
    ready = SimpleNamespace(capabilities=())

    def __init__(self, history: History, ends: dict[tuple[str, type[Any]], str]) -> None:
        self.held: set[object] = set()
        self._history = history
        self._ends = ends

    async def call(self, request: Any) -> None:
        """Take an op; the request that ends with it is forgotten while it is on its way."""
        await asyncio.sleep(0)
        if isinstance(request, Release):
            self.held.discard(request.request_id)
        else:
            self.held.add(request.request_id)
        self._history.forget(self._ends.pop((request.request_id, type(request)), ""))


def test_a_request_that_ends_while_others_are_replayed_is_freed() -> None:
    history, chunk = History(1, 0), Chunk((1, 2), 0)
    for rid in ("a", "b", "c"):
        history.add(0, rid, chunk, None)
    op = type(chunk.first_op("a"))
    # One ends while another is replayed, and one while that one is freed.
    stage: Any = Fed(history, {("b", op): "a", ("a", Release): "c"})
    nothing: Any = None
    facts: Any = SimpleNamespace(needs_tokens=False)
    replay = Replay(0, 1, history, through=nothing, release=nothing, facts=lambda: facts)
    assert asyncio.run(replay.all(stage)) == Replayed(1, 2)
    assert stage.held == {"b"}
