"""The answers to one request, all at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from types import TracebackType

from starlette.requests import Request

from orchestrator.serve.openai.choice import Choice
from orchestrator.serve.openai.delta import Delta
from orchestrator.serve.service import Service


class Choices:
    """Runs the answers while the block lasts; leaving it ends them.

    What they say is kept until it is asked for, so that a client that reads slowly holds no place
    longer than its answers take.
    """

    def __init__(self, service: Service, http: Request, choices: Sequence[Choice]) -> None:
        self._service = service
        self._http = http
        self._choices = choices
        self._said: asyncio.Queue[Delta | Exception | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._running = 0
        self._failure: Exception | None = None

    async def next(self, timeout_s: float | None = None) -> list[Delta] | None:
        """Return what was said since; None at the end.

        Args:
            timeout_s: nothing is returned where nothing was said for as long.

        Raises:
            Exception: an answer failed, and what was said before has been returned; see
                `Choice.deltas`.
        """
        said: list[Delta] = []
        while self._running:
            if self._failure is not None:
                raise self._failure
            try:
                async with asyncio.timeout(timeout_s):
                    self._hear(await self._said.get(), said)
            except TimeoutError:
                return said
            while self._failure is None and not self._said.empty():
                self._hear(self._said.get_nowait(), said)
            if said:
                return said
        return None

    def _hear(self, one: Delta | Exception | None, said: list[Delta]) -> None:
        if isinstance(one, Exception):
            self._failure = one
        elif one is None:
            self._running -= 1
        elif not one.is_empty:
            said.append(one)

    async def _run(self, choice: Choice) -> None:
        try:
            async with contextlib.aclosing(choice.deltas(self._service, self._http)) as deltas:
                async for delta in deltas:
                    self._said.put_nowait(delta)
        except Exception as error:  # noqa: BLE001 - whoever waits raises it.
            self._said.put_nowait(error)
        else:
            self._said.put_nowait(None)

    async def __aenter__(self) -> Choices:
        self._tasks = [asyncio.create_task(self._run(choice)) for choice in self._choices]
        self._running = len(self._tasks)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
