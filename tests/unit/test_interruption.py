"""Signals end a run, however many come."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from orchestrator.interruption import Interrupted, Interruption


async def stormed(said: list[str], hurried: list[int]) -> None:
    with Interruption(said.append) as interruption:
        interruption.harder = lambda: hurried.append(1)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            # None of them leaves the loop a turn: a flood must not become a queue.
            for _ in range(1000):
                os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(60)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)


def test_signals_that_come_together_are_acted_on_once() -> None:
    said: list[str] = []
    hurried: list[int] = []
    with pytest.raises(Interrupted) as caught:
        asyncio.run(stormed(said, hurried))
    assert (caught.value.number, len(said), len(hurried)) == (signal.SIGTERM, 1, 2)
