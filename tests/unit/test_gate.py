"""Logins go through a gate: a few at once to one host, a few more in all; dropped ones wait."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.specs import StageSpec
from orchestrator.stage.gate import MOST_LOGINS, StartGate, login_pauses
from orchestrator.timeouts import Timeouts
from orchestrator.transport.ssh import SshTarget
from tests.support.stages import stub_spec


def on_host(name: str) -> StageSpec:
    return StageSpec(stage=0, num_stages=1, host=name, transport="ssh", ssh=SshTarget(host=name))


def most_at_once(specs: list[StageSpec]) -> int:
    """Return how many of the specs are let in while nobody leaves."""

    async def enter() -> int:
        gate = StartGate(per_host=2, in_all=5)
        inside = 0
        leave = asyncio.Event()

        async def login(spec: StageSpec) -> None:
            nonlocal inside
            async with gate.login(spec):
                inside += 1
                await leave.wait()

        tasks = [asyncio.create_task(login(spec)) for spec in specs]
        for _ in range(10):  # turns of the loop; nothing here waits for time
            await asyncio.sleep(0)
        seen = inside
        leave.set()
        await asyncio.gather(*tasks)
        return seen

    return asyncio.run(enter())


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([on_host("a")] * 4, 2),
        ([on_host("a"), on_host("b")] * 4, 4),
        ([on_host(str(i)) for i in range(9)], 5),
        ([stub_spec()] * 9, 9),
    ],
)
def test_as_many_log_in_at_once_as_a_server_takes(specs: list[StageSpec], expected: int) -> None:
    assert most_at_once(specs) == expected


def test_pauses_grow_to_a_bound_and_end() -> None:
    limits = Timeouts(login_pause_s=1, most_login_pause_s=4)
    pauses = list(login_pauses(limits))
    bounds = [1, 2, *[4] * (MOST_LOGINS - 3)]
    assert [0.5 * b <= p <= 1.5 * b for b, p in zip(bounds, pauses, strict=True)] == [True] * 9
