"""Ops on their way: which is the oldest, also when a reply turns out to be none."""

from __future__ import annotations

import asyncio

from orchestrator.stage.pending import PendingOp, PendingOps
from worker.protocol.ops import Tokenize


def test_an_op_whose_reply_was_none_is_the_oldest_again() -> None:
    async def run() -> None:
        pending, loop = PendingOps(), asyncio.get_running_loop()
        asked = [Tokenize(request_id=rid, prompt="") for rid in "ab"]
        for request in asked:
            pending.add(PendingOp(request, loop.create_future(), 1))
        first = pending.take("a")
        assert first is not None
        assert pending.oldest is not None
        assert pending.oldest.request is asked[1]
        pending.put_back(first)
        assert pending.oldest is first

    asyncio.run(run())
