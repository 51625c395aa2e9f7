"""How many logins there may be at once: sshd drops what comes in greater numbers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

from orchestrator.specs import StageSpec
from orchestrator.timeouts import Timeouts

# sshd's own default (MaxStartups 10:30:100) begins to drop at ten that have not logged in yet, and
# dropped 9 of 32 that came at once. Behind one jump host all hosts are one.
LOGINS_PER_HOST = 4
LOGINS = 16
# Half a minute of trying; a server that refuses us for other reasons does it every time.
MOST_LOGINS = 10


class StartGate:
    """Let a few workers log in at a time; one gate serves all workers that start together."""

    def __init__(self, per_host: int = LOGINS_PER_HOST, in_all: int = LOGINS) -> None:
        self._per_host = per_host
        self._all = asyncio.Semaphore(in_all)
        self._hosts: dict[str, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def login(self, spec: StageSpec) -> AsyncIterator[None]:
        """Hold a place from before the login until the worker's host has answered."""
        async with AsyncExitStack() as places:
            if spec.ssh is not None:
                name = spec.ssh.known_hosts_name
                host = self._hosts.setdefault(name, asyncio.Semaphore(self._per_host))
                # The host's place first: who waits for a busy host keeps nobody else waiting.
                await places.enter_async_context(host)
            if spec.transport != "local":
                await places.enter_async_context(self._all)
            yield


def login_pauses(timeouts: Timeouts) -> Iterator[float]:
    """Yield the seconds to wait before each new try of a dropped login, `MOST_LOGINS` in all.

    With jitter, for those that were dropped together would be dropped together again.
    """
    pause_s = timeouts.login_pause_s
    for _ in range(MOST_LOGINS - 1):
        yield pause_s * random.uniform(0.5, 1.5)
        pause_s = min(2 * pause_s, timeouts.most_login_pause_s)
