"""One shift at the desk: answer until somebody says stop, then see the last clients out."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

from orchestrator.failures import StageFailure
from orchestrator.interruption import Interrupted, Interruption
from orchestrator.serve.http_server import HttpServer
from orchestrator.serve.listener import Listener
from orchestrator.serve.revival import keep_alive
from orchestrator.serve.service import Service
from orchestrator.stderr import say

# Answers that are ended take no longer to tell their clients.
_LAST_WORDS_S = 2.0


class Shift:
    """Runs the HTTP server beside its stages.

    Args:
        service: what is served.
        http: where it is served.
        listener: the socket.
        drain_s: how long answers may go on after the first signal.
    """

    def __init__(
        self, service: Service, http: HttpServer, listener: Listener, drain_s: float
    ) -> None:
        self._service = service
        self._http = http
        self._listener = listener
        self._drain_s = drain_s

    async def work(self, interruption: Interruption) -> None:
        """Answer until a signal comes, or until no stage can answer any more.

        Raises:
            Interrupted: a signal came, and every answer has ended, by itself or at the deadline.
            StageFailure: a stage is lost for good.
        """
        asked: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
        interruption.softer = asked.set_result
        serving = asyncio.create_task(self._http.serve([self._listener.socket]))
        living = asyncio.create_task(keep_alive(self._service.pipeline.stages))
        try:
            awaited: set[asyncio.Future[Any]] = {serving, living, asked}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            failure = living.result() if living.done() else None
            if asked.done():
                await self._drain(asked.result())
            await self._close(serving)
        finally:
            for task in (serving, living):
                task.cancel()
            await asyncio.gather(serving, living, return_exceptions=True)
            self._http.cut()
        self._raise(asked.result() if asked.done() else None, failure)

    async def _drain(self, number: signal.Signals) -> None:
        """Let the answers under way end, as far as they do in time."""
        desk = self._service.desk
        desk.drain()
        if not desk.running:
            return
        say(
            f"{number.name}: {desk.running} under way may take {self._drain_s:g} s more; "
            "a second signal ends them at once"
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                await desk.idle()

    async def _close(self, serving: asyncio.Task[None]) -> None:
        """End the answers that are left, and the connections."""
        desk = self._service.desk
        desk.drain()
        self._service.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await desk.idle()
        self._http.should_exit = True
        await serving

    @staticmethod
    def _raise(number: signal.Signals | None, failure: StageFailure | None) -> None:
        if number is not None:
            raise Interrupted(number)
        if failure is not None:
            raise failure
        raise AssertionError("the HTTP server ended though nobody had asked it to")
