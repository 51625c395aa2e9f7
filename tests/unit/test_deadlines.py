"""Each op fails at its own time, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orchestrator.stage.deadlines import Deadlines
from orchestrator.stage.pending import NEVER_S, PendingOp, PendingOps
from worker.protocol.ops import Ping, PongReply


def after(limits_s: list[float], act: Callable[[PendingOps], None]) -> list[str]:
    """Ask one op for each limit, `act`, wait for all; return how each ended, first things first."""
    ended: list[str] = []

    async def one(limit_s: float, op: PendingOp) -> None:
        try:
            await op.future
            ended.append(f"{limit_s} answered")
        except TimeoutError:
            early = asyncio.get_running_loop().time() < op.late_s - 0.001
            ended.append(f"{limit_s} {'early' if early else 'late'}")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        pending = PendingOps()
        deadlines = Deadlines(lambda: pending.in_flight)
        waits = []
        for limit_s in limits_s:
            op = PendingOp(Ping(request_id="p"), loop.create_future(), 1, loop.time() + limit_s)
            pending.add(op)
            deadlines.watch(op)
            waits.append(one(limit_s, op))
        act(pending)
        async with asyncio.timeout(10):
            await asyncio.gather(*waits)
        deadlines.close()

    asyncio.run(run())
    return ended


def answer_first(pending: PendingOps) -> None:
    op = pending.take("p")
    assert op is not None
    op.future.set_result(PongReply(pong=True))


def test_ops_are_late_in_the_order_of_their_deadlines() -> None:
    expected = ["0.02 late", "0.04 late", "0.06 late"]
    assert after([0.04, 0.06, 0.02], lambda pending: None) == expected


def test_an_op_that_was_answered_is_never_late_and_the_next_one_is_at_its_time() -> None:
    assert after([0.02, 0.04], answer_first) == ["0.02 answered", "0.04 late"]


def test_an_op_without_a_deadline_sets_no_timer() -> None:
    assert after([NEVER_S], answer_first) == ["inf answered"]
